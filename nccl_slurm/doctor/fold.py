"""Findings of all checks and nodes → what a person reads: causes first, consequences under them, nodes folded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.doctor.check import PRIORITIES, Finding, Priority, Proof, Status
from nccl_slurm.hosts import fold
from nccl_slurm.parse.redact import redacted

__all__ = ["at_least", "folded", "weight", "worst"]

_MOST_PROOFS = 4
_STATUS: tuple[Status, ...] = ("FAIL", "WARN", "UNKNOWN", "NOT-APPLICABLE", "PASS")
_NOTHING_TO_EXPLAIN = ("PASS", "NOT-APPLICABLE")


def folded(findings: Iterable[Finding], explains: Mapping[str, Sequence[str]], order: Sequence[str]) -> list[Finding]:
    """``explains``: check → checks whose findings on the same nodes follow from its FAIL. ``order``: all checks."""
    told = list(findings)
    place = {check: number for number, check in enumerate(order)}
    marked = [part for one in told for part in _explained(one, _causes(told, explains, place), place)]
    merged = _merged(marked)
    under = Counter(one.explained_by for one in merged if one.explained_by)
    return sorted(merged, key=lambda one: (weight(one), -under[one.check], place.get(one.check, 9999), one.text))


def weight(finding: Finding) -> tuple[int, int]:
    """Smaller is worse."""
    priority = PRIORITIES.index(finding.priority) if finding.priority else len(PRIORITIES)
    return priority, _STATUS.index(finding.status)


def worst(findings: Iterable[Finding]) -> Priority | None:
    return min((one.priority for one in findings if one.priority), default=None)


def at_least(findings: Iterable[Finding], priority: Priority) -> list[Finding]:
    """Those of that priority or a worse one, and what could not be seen: that may be anything."""
    return [
        one for one in findings if one.status == "UNKNOWN" or (one.priority is not None and one.priority <= priority)
    ]


def _causes(
    findings: Sequence[Finding], explains: Mapping[str, Sequence[str]], place: Mapping[str, int]
) -> dict[str, list[Finding]]:
    """Check → findings that explain it. Of two checks that explain each other the first one counts."""
    found: dict[str, list[Finding]] = {}
    for one in findings:
        for check in explains.get(one.check, ()) if one.status == "FAIL" else ():
            mutual = one.check in explains.get(check, ())
            if check != one.check and not (mutual and place.get(check, 0) < place.get(one.check, 0)):
                found.setdefault(check, []).append(one)
    return found


def _explained(
    finding: Finding, causes: Mapping[str, Sequence[Finding]], place: Mapping[str, int]
) -> Iterator[Finding]:
    """In parts: on some nodes it may follow from another finding, on others not."""
    if finding.explained_by or finding.status in _NOTHING_TO_EXPLAIN:
        yield finding
        return
    left = list(finding.nodes)
    for cause in sorted(causes.get(finding.check, ()), key=lambda one: (weight(one), place.get(one.check, 9999))):
        if not cause.nodes:  # the whole cluster
            yield replace(finding, nodes=tuple(left), explained_by=cause.check)
            return
        hit = [node for node in left if node in set(cause.nodes)]
        left = [node for node in left if node not in set(cause.nodes)]
        if hit:
            yield replace(finding, nodes=tuple(hit), explained_by=cause.check)
    if left or not finding.nodes:
        yield replace(finding, nodes=tuple(left))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One for all nodes on which the same is said."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.check, one.status, one.priority, redacted(one.text), one.explained_by, bool(one.nodes))
        groups.setdefault(key, []).append(one)
    return [_one(group) for group in groups.values()]


def _one(group: Sequence[Finding]) -> Finding:
    first = group[0]
    nodes = sorted({node for one in group for node in one.nodes})
    since = [one.since for one in group if one.since is not None]
    values = {key: value for key, value in first.values.items() if all(one.values.get(key) == value for one in group)}
    return replace(
        first,
        text=redacted(first.text),
        nodes=tuple(nodes),
        since=min(since) if since else None,
        proofs=tuple(_proofs(group))[:_MOST_PROOFS],
        values=values,
    )


def _proofs(group: Sequence[Finding]) -> Iterator[Proof]:
    """Of several nodes each proof says whose it is; what many say alike is said once."""
    several = len({node for one in group for node in one.nodes}) > 1
    alike: dict[tuple[str, str], set[str]] = {}
    for one in group:
        for proof in one.proofs:
            alike.setdefault((redacted(proof.source), redacted(proof.line)), set()).update(one.nodes)
    for (source, line), nodes in alike.items():
        yield Proof(f"{fold(nodes)}: {source}" if several and nodes else source, line)
