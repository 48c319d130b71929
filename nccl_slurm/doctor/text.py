"""A result as text for terminals: what is wrong first, causes above what follows from them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor import pointer
from nccl_slurm.doctor.check import Check, Finding, Priority
from nccl_slurm.doctor.compare import Change
from nccl_slurm.doctor.fold import at_least, weight
from nccl_slurm.doctor.result import Looked, Result
from nccl_slurm.hosts import fold
from nccl_slurm.report.visible import visible
from nccl_slurm.report.words import counted

__all__ = ["changes", "explained", "listed", "render"]

_WIDTH = 400
_WAYS = {
    "job-step": "by a step beside the job",
    "job": "by a short job on an idle node",
    "ssh": "by SSH",
    "local": "on this host",
}
_COLORS = {"FAIL": "31", "WARN": "33", "UNKNOWN": "35", "PASS": "32"}
_SUGGESTED = "Suggested command (run this yourself):"


def render(result: Result, *, color: bool = False, severity: Priority | None = None, wide: bool = False) -> str:
    """``severity``: findings of that priority or worse. ``wide``: what passed, one by one."""
    lines = [*_head(result), ""]
    shown = at_least(result.findings, severity) if severity else list(result.findings)
    under = _under(shown)
    told = {id(one) for one in under}
    heads = [one for one in shown if id(one) not in told]
    causes = [one for one in heads if one.status in ("FAIL", "WARN")]
    for one in causes:
        lines += [*_cause(result, one, [two for two in under if _belongs(two, one)], color), ""]
    for group in _unseen(heads):
        lines += [*_not_seen(group, under, color), ""]
    lines += _rest(result, wide)
    if (due := result.escalation) is not None:
        lines += ["", f"Nothing else is left to try here: {due.why} [escalation.{due.rule}]"]
        lines += [f"  {_SUGGESTED} (it sends nothing)", f"    {due.command}"]
    return "\n".join(lines)


def _head(result: Result) -> Iterator[str]:
    looked, job = result.looked, f" job {result.job}," if result.job else ""
    cluster = f" cluster {visible(result.cluster, 80)}," if result.cluster else ""
    made = f"{counted(len(result.checks), 'check')} in {result.seconds:.1f} s, {rfc3339(result.at)}"
    yield f"nccl-slurm doctor:{cluster}{job} {made}"
    yield from _nodes(looked)
    yield from (f"Not covered: {visible(one, _WIDTH)}" for one in result.left_out)


def _nodes(looked: Looked) -> Iterator[str]:
    if not looked.chosen:
        yield "No node was looked at: choose them by --job ID, --nodes LIST, --all-idle or --local"
        return
    sample = f", a sample of {looked.of}: nothing is said of the others" if looked.of is not None else ""
    answered = sum(map(len, looked.ways.values()))
    yield f"{answered} of {len(looked.chosen)} nodes answered{sample}"
    for way, nodes in looked.ways.items():
        if nodes:
            yield f"  {fold(nodes)}: {_WAYS.get(way, way)}"


def _under(shown: Sequence[Finding]) -> list[Finding]:
    """What is told in a line of its cause. One whose cause is not told by itself is told like others."""
    heads = [one for one in shown if not one.explained_by and one.status in ("FAIL", "WARN", "UNKNOWN")]
    return [one for one in shown if one.explained_by and any(_belongs(one, head) for head in heads)]


def _belongs(finding: Finding, cause: Finding) -> bool:
    if finding.explained_by != cause.check:
        return False
    return not cause.nodes or not finding.nodes or bool(set(finding.nodes) & set(cause.nodes))


def _cause(result: Result, finding: Finding, under: Sequence[Finding], color: bool) -> Iterator[str]:
    yield _line(finding, color)
    if finding.since is not None:
        yield f"     since {rfc3339(finding.since)}"
    for proof in finding.proofs:
        yield f"     {visible(proof.source, _WIDTH)}: {visible(proof.line, _WIDTH)}"
    for check, nodes in _consequences(under).items():
        yield f"     explains {check}{f' on {fold(nodes)}' if nodes else ''}"
    if commands := result.commands(finding):
        yield f"     {_SUGGESTED}"
        yield from (f"       {visible(command, 1000)}" for command in commands)
    yield f"     guide: {pointer.pointer(finding.check)}"


def _unseen(findings: Sequence[Finding]) -> list[list[Finding]]:
    """By nodes and reason: one source that can't be read, or a Slurm that does not answer, blinds many checks."""
    groups: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for one in findings:
        if one.status == "UNKNOWN":
            groups.setdefault((one.text, tuple(one.nodes)), []).append(one)
    return list(groups.values())


def _not_seen(group: Sequence[Finding], under: Sequence[Finding], color: bool) -> Iterator[str]:
    """Without commands: nothing is known to be wrong. ``--explain`` has those by which a person may look himself."""
    first = group[0]
    if len(group) == 1:
        yield _line(first, color)
    else:
        yield _line(replace(first, check="several checks"), color)
        yield from textwrap.wrap(
            ", ".join(one.check for one in group), 110, initial_indent="     ", subsequent_indent="     "
        )
    for check, nodes in _consequences([two for two in under if _belongs(two, first)]).items():
        yield f"     explains {check}{f' on {fold(nodes)}' if nodes else ''}"
    yield f"     guide: {pointer.pointer(first.check)}{' ...' if len(group) > 1 else ''}"


def _consequences(under: Sequence[Finding]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in sorted(under, key=weight):
        found.setdefault(one.check, set()).update(one.nodes)
    return found


def _line(finding: Finding, color: bool) -> str:
    word = f"{finding.priority or '--'} {finding.status}"
    shown = f"\x1b[{_COLORS[finding.status]}m{word}\x1b[0m" if color and finding.status in _COLORS else word
    nodes = f"{fold(finding.nodes)}: " if finding.nodes else ""
    return f"{shown} {finding.check} {nodes}{visible(finding.text, _WIDTH)}"


def _rest(result: Result, wide: bool) -> Iterator[str]:
    quiet = [one for one in result.findings if one.status in ("PASS", "NOT-APPLICABLE")]
    if wide:
        yield from (_line(one, False) for one in quiet)
    bad = {one.check for one in result.findings if one.status in ("FAIL", "WARN", "UNKNOWN")}
    good = {one.check for one in quiet if one.status == "PASS"} - bad
    other = {one.check for one in quiet if one.status == "NOT-APPLICABLE"} - bad - good
    counts = Counter(one.status for one in result.findings if not one.explained_by)
    told = ", ".join(f"{counts[status]} {status}" for status in ("FAIL", "WARN", "UNKNOWN") if counts[status])
    yield f"{told or 'Nothing found'}; {len(good)} checks passed, {len(other)} do not apply"


def listed(checks: Sequence[Check[object]]) -> str:
    width = max((len(one.id) for one in checks), default=0)
    return "\n".join(f"{one.id:<{width}}  {one.title}" for one in checks)


def explained(check: Check[object]) -> str:
    """What it reads and what it explains, then the guide's section."""
    lines = [f"{check.id}: {check.title}", f"reads: {', '.join(check.sources) or 'what Slurm or AWS says'}"]
    if check.explains:
        lines.append(f"explains, where it fails: {', '.join(check.explains)}")
    if (section := pointer.section(check.id)) is None:
        return "\n".join(lines)
    for label in ("title", "symptom", "proof", "cause", "remedy", "verify", "blast_radius"):
        if words := getattr(section, label, ""):
            lines.append(f"{label.replace('_', ' ')}: {words}")
    lines += [_SUGGESTED, *(f"  {command}" for command in section.commands)] if section.commands else []
    return "\n".join(lines)


def changes(found: Sequence[Change], before: str | None, notes: Sequence[str] = ()) -> str:
    """Against an earlier run: what went, what came, what is still there. ``notes``: how the runs themselves differ."""
    lines = [f"Compared with {before or 'the run before'}:", *(f"  {visible(note, _WIDTH)}" for note in notes)]
    for change in found:
        nodes = f" {fold(change.nodes)}" if change.nodes else ""
        lines.append(f"  {change.kind:<8} {change.check}{nodes}: {change.before or '-'} -> {change.after or '-'}")
    return "\n".join(lines if found else [*lines, "  no change"])
