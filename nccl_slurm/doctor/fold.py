"""Findings of all checks and nodes → what a person reads: causes first, consequences under them, nodes folded. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from nccl_slurm.doctor.check import PRIORITIES, Finding, Priority, Proof, Status
from nccl_slurm.hosts import fold
from nccl_slurm.parse.redact import redacted

__all__ = ["at_least", "folded", "weight", "worst"]

_MOST_PROOFS = 4
_STATUS: tuple[Status, ...] = ("FAIL", "WARN", "UNKNOWN", "NOT-APPLICABLE", "PASS")
_PCI = re.compile(r"\b([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE)
_NOTHING_TO_EXPLAIN = ("PASS", "NOT-APPLICABLE")


def folded(findings: Iterable[Finding], explains: Mapping[str, Sequence[str]], order: Sequence[str]) -> list[Finding]:
    """``explains``: check → checks whose findings on the same nodes follow from its FAIL. ``order``: all checks."""
    told = list(findings)
    place = {check: number for number, check in enumerate(order)}
    causes = _causes(told, explains, place)
    marked = [part for one in told for part in _explained(one, causes)]
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
    """Those of that priority or a worse one; and what could not be seen, which may be anything, with its cause."""
    told = list(findings)
    causes = {(one.explained_by, node) for one in told if one.status == "UNKNOWN" for node in (*one.nodes, "")}
    return [one for one in told if _is_wanted(one, priority, causes)]


def _is_wanted(finding: Finding, priority: Priority, causes: Container[tuple[str | None, str]]) -> bool:
    if finding.status == "UNKNOWN" or (finding.priority is not None and finding.priority <= priority):
        return True
    return finding.status == "FAIL" and any((finding.check, node) in causes for node in finding.nodes or [""])


class _Cause(NamedTuple):
    weight: tuple[int, int]
    place: int
    check: str
    gpus: frozenset[str]


def _causes(
    findings: Sequence[Finding], explains: Mapping[str, Sequence[str]], place: Mapping[str, int]
) -> dict[tuple[str, str], list[_Cause]]:
    """(check, node) → what may explain it there; the node of a cause of the whole cluster is empty. Of two checks that
    explain each other the first one counts."""
    found: dict[tuple[str, str], list[_Cause]] = {}
    for one in findings:
        if one.status != "FAIL":
            continue
        cause = _Cause(weight(one), place.get(one.check, 9999), one.check, _gpus(one))
        for check in explains.get(one.check, ()):
            mutual = one.check in explains.get(check, ())
            if check != one.check and not (mutual and place.get(check, 0) < place.get(one.check, 0)):
                for node in one.nodes or [""]:
                    found.setdefault((check, node), []).append(cause)
    return found


def _explained(finding: Finding, causes: Mapping[tuple[str, str], Sequence[_Cause]]) -> Iterator[Finding]:
    """In parts: on some nodes it may follow from another finding, on others not."""
    if finding.explained_by or finding.status in _NOTHING_TO_EXPLAIN:
        yield finding
        return
    gpus, parts = _gpus(finding), dict[str | None, list[str]]()
    for node in finding.nodes or [""]:
        known = [*causes.get((finding.check, node), ()), *(causes.get((finding.check, ""), ()) if node else ())]
        cause = min((one for one in known if _covers(one, finding, gpus)), default=None)
        parts.setdefault(cause.check if cause else None, []).append(node)
    for check, nodes in parts.items():
        yield replace(finding, nodes=tuple(node for node in nodes if node), explained_by=check)


def _covers(cause: _Cause, finding: Finding, gpus: frozenset[str]) -> bool:
    """What is worse than its cause, or of another GPU, needs a look of its own."""
    alike = not cause.gpus or not gpus or bool(cause.gpus & gpus)
    return alike and cause.weight[0] <= weight(finding)[0]


def _gpus(finding: Finding) -> frozenset[str]:
    """PCI addresses of the GPUs that it names; empty where it is of the node, or names one in another way. The kernel
    writes ``0000:53:00``, nvidia-smi ``00000000:53:00.0``."""
    if "gpu" not in finding.values:
        return frozenset()
    texts = (finding.values["gpu"], *(one.line for one in finding.proofs))
    found = (match for text in texts for match in _PCI.findall(text))
    return frozenset(f"{domain[-4:]}:{slot}".lower() for domain, slot in found)


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
