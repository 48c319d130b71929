"""A result as text for terminals: what is wrong first, causes above what follows from them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor import pointer
from nccl_slurm.doctor.check import Check, Finding, Priority, Status
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
#: The worst first.
_STATUS_WORDS: dict[Status, str] = {
    "FAIL": "FAIL",
    "WARN": "WARN",
    "UNKNOWN": "UNKNOWN",
    "PASS": "passed",
    "NOT-APPLICABLE": "not applicable",
}
_STATUSES = tuple(_STATUS_WORDS)
#: More consequences than this are told in one paragraph.
_ONE_BY_ONE = 5
#: Characters of what one of them found.
_CONSEQUENCE = 160
_SUGGESTED = "Suggested command (run this yourself):"


def render(result: Result, *, color: bool = False, severity: Priority | None = None, wide: bool = False) -> str:
    """``severity``: findings of that priority or worse. ``wide``: what passed, one by one."""
    lines = [*_head(result), ""]
    shown = at_least(result.findings, severity) if severity else list(result.findings)
    under = _under(shown)
    told = {id(one) for one in under}
    listed: set[str] = set()
    heads = [one for one in shown if id(one) not in told]
    causes = [one for one in heads if one.status in ("FAIL", "WARN")]
    for one in causes:
        lines += [*_cause(result, one, _explains(one, under, listed), color), ""]
    for group in _unseen(heads):
        lines += [*_not_seen(group, _explains(group[0], under, listed), color), ""]
    lines += _rest(result, wide)
    if (due := result.escalation) is not None:
        lines += ["", f"Nothing else is left to try here: {due.why} [escalation.{due.rule}]"]
        lines += [f"  {_SUGGESTED} (it sends nothing)", f"    {due.command}"]
    return "\n".join(lines)


def _head(result: Result) -> Iterator[str]:
    looked, job = result.looked, f" job {result.job}," if result.job else ""
    cluster = f" cluster {visible(result.cluster, 80)}," if result.cluster else ""
    made = f"{counted(len(_checks(result)), 'check')} in {result.seconds:.1f} s, {rfc3339(result.at)}"
    yield f"nccl-slurm doctor:{cluster}{job} {made}"
    yield from _nodes(looked)
    yield from (f"Not covered: {visible(one, _WIDTH)}" for one in result.left_out)


def _checks(result: Result) -> set[str]:
    """Those that were chosen, and that which tells of nodes without an answer."""
    return {*result.checks, *(one.check for one in result.findings)}


def _nodes(looked: Looked) -> Iterator[str]:
    if looked.blind:
        yield "No node was looked at: Slurm does not tell which there are"
        return
    if not looked.chosen:
        yield "No node was looked at: choose them by --job ID, --nodes LIST, --all-idle or --local"
        return
    if looked.unasked:
        yield f"No node was looked at ({len(looked.chosen)} chosen): none of the checks reads anything there"
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


def _cause(result: Result, finding: Finding, explains: Iterable[str], color: bool) -> Iterator[str]:
    yield _line(finding, color)
    if finding.since is not None:
        yield f"     since {rfc3339(finding.since)}"
    for proof in finding.proofs:
        yield f"     {visible(proof.source, _WIDTH)}: {visible(proof.line, _WIDTH)}"
    yield from explains
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


def _not_seen(group: Sequence[Finding], explains: Iterable[str], color: bool) -> Iterator[str]:
    """Without commands: nothing is known to be wrong. ``--explain`` has those by which a person may look himself."""
    first = group[0]
    if len(group) == 1:
        yield _line(first, color)
    else:
        yield _line(replace(first, check="several checks"), color)
        yield from _wrapped(", ".join(one.check for one in group))
    yield from explains
    yield f"     guide{', one by one' if len(group) > 1 else ''}: {pointer.pointer(first.check)}"


def _explains(cause: Finding, every: Sequence[Finding], listed: set[str]) -> Iterator[str]:
    """A node that gives no observation blinds forty checks: those of the same nodes stand together, and are listed
    once. ``listed``: lists of checks that were told, which grows."""
    groups: dict[str, list[str]] = {}
    under = [_on(one, cause.nodes) for one in every if _belongs(one, cause)]
    said = _failures(under)
    for check, nodes in _consequences(under).items():
        groups.setdefault(f" on {fold(nodes)}" if nodes else "", []).append(check)
    for where, checks in groups.items():
        if len(checks) <= _ONE_BY_ONE:
            yield from (f"     explains {check}{where}{said.get(check, '')}" for check in checks)
        elif (ids := ", ".join(checks)) in listed:
            yield f"     explains the same {counted(len(checks), 'check')}{where}"
        else:
            listed.add(ids)
            yield from _wrapped(f"explains {counted(len(checks), 'check')}{where}: {ids}")


def _on(finding: Finding, nodes: Sequence[str]) -> Finding:
    """What it says of these nodes, where it is of any."""
    ours = tuple(node for node in finding.nodes if node in set(nodes))
    return replace(finding, nodes=ours) if ours else finding


def _failures(under: Sequence[Finding]) -> Mapping[str, str]:
    """Check → what it found wrong, in words: whoever reads may see that it follows from another cause after all."""
    found: dict[str, list[str]] = {}
    for one in under:
        if one.status in ("FAIL", "WARN"):
            found.setdefault(one.check, []).append(visible(one.text, _CONSEQUENCE))
    more = {check: f" and {len(texts) - 1} more" if len(texts) > 1 else "" for check, texts in found.items()}
    return {check: f": {texts[0]}{more[check]}" for check, texts in found.items()}


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, 110, initial_indent="     ", subsequent_indent="     ", break_on_hyphens=False)


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
    yield _counts(result.findings)


def _counts(findings: Sequence[Finding]) -> str:
    """Of checks; JSON counts findings, of which one check may have several."""
    worst = {one.check: one.status for one in sorted(findings, key=lambda one: -_STATUSES.index(one.status))}
    counts = Counter(worst.values())
    told = ", ".join(f"{counts[status]} {word}" for status, word in _STATUS_WORDS.items() if counts[status])
    by = f", {'each ' if len(worst) > 1 else ''}by the worst that it found" if len(worst) < len(findings) else ""
    return f"{counted(len(worst), 'check')}{by}: {told}"


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
    if section.commands:
        words = pointer.commands(Finding(check.id, "FAIL", check.title, "P0"))
        lines += [_SUGGESTED, *(f"  {command}" for command in words)]
    return "\n".join(lines)


def changes(found: Sequence[Change], before: str | None, notes: Sequence[str] = ()) -> str:
    """Against an earlier run: what went, what came, what is still there. ``notes``: how the runs themselves differ."""
    lines = [f"Compared with {before or 'the run before'}:", *(f"  {visible(note, _WIDTH)}" for note in notes)]
    for change in found:
        nodes = f" {fold(change.nodes)}" if change.nodes else ""
        lines.append(f"  {change.kind:<8} {change.check}{nodes}: {change.before or '-'} -> {change.after or '-'}")
    return "\n".join(lines if found else [*lines, "  no change"])
