"""Findings of all checks and nodes → what a person reads: causes first, consequences under them, nodes folded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

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
    causes = _causes(told, explains, place)
    marked = [part for one in told for part in _explained(one, causes.get(one.check, ()))]
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


@dataclass
class _Cause:
    """``nodes`` None: the whole cluster."""

    check: str
    weight: tuple[int, int]
    nodes: set[str] | None


def _causes(
    findings: Sequence[Finding], explains: Mapping[str, Sequence[str]], place: Mapping[str, int]
) -> dict[str, list[_Cause]]:
    """Check → what explains it, the worst first. Of two checks that explain each other the first one counts."""
    failed: dict[str, _Cause] = {}
    for one in findings:
        if one.status == "FAIL" and explains.get(one.check):
            cause = failed.setdefault(one.check, _Cause(one.check, weight(one), set()))
            cause.weight = min(cause.weight, weight(one))
            cause.nodes = None if cause.nodes is None or not one.nodes else cause.nodes | set(one.nodes)
    found: dict[str, list[_Cause]] = {}
    for cause in sorted(failed.values(), key=lambda one: (one.weight, place.get(one.check, 9999))):
        for check in explains[cause.check]:
            mutual = cause.check in explains.get(check, ())
            if check != cause.check and not (mutual and place.get(check, 0) < place.get(cause.check, 0)):
                found.setdefault(check, []).append(cause)
    return found


def _explained(finding: Finding, causes: Sequence[_Cause]) -> Iterator[Finding]:
    """In parts: on some nodes it may follow from another finding, on others not."""
    if finding.explained_by or finding.status in _NOTHING_TO_EXPLAIN or not causes:
        yield finding
        return
    left = list(finding.nodes)
    for cause in causes:
        if cause.nodes is None:
            yield replace(finding, nodes=tuple(left), explained_by=cause.check)
            return
        if hit := [node for node in left if node in cause.nodes]:
            left = [node for node in left if node not in cause.nodes]
            yield replace(finding, nodes=tuple(hit), explained_by=cause.check)
    if left or not finding.nodes:
        yield replace(finding, nodes=tuple(left))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One for all nodes on which the same is said."""
    safe = lru_cache(maxsize=1024)(redacted)  # most nodes say the same
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.check, one.status, one.priority, safe(one.text), one.explained_by, bool(one.nodes))
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
    """What was found node by node says of each proof whose it is; what many say alike is said once."""
    alike: dict[Proof, set[str]] = {}
    for one in group:
        for proof in one.proofs:
            alike.setdefault(proof, set()).update(one.nodes)
    by_node = len(group) > 1 and all(len(one.nodes) == 1 for one in group)
    for proof, nodes in list(alike.items())[:_MOST_PROOFS]:
        source = redacted(proof.source)
        yield Proof(f"{fold(nodes)}: {source}" if by_node else source, redacted(proof.line))
