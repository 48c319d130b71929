"""Nodes that are out of work, or that something is recommended for: one row a node, what to do first on top. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from nccl_slurm.history.rows import NodeEventRow, RecommendationRow
from nccl_slurm.review.queue import ACTIONS_ON_MACHINES

__all__ = ["NOT_OBSERVED", "NO_REASON_TO", "Drain", "drains", "is_out"]

NOT_OBSERVED = "no opinion: not observed"
NO_REASON_TO = "no opinion: no run that was captured speaks against it"

_OUT_BASE = frozenset({"DOWN", "FAIL", "ERROR", "UNKNOWN"})
_OUT_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "REBOOT_ISSUED", "REBOOT_REQUESTED"})
EVENTS_SHOWN = 3


@dataclass(frozen=True)
class Drain:
    """``since`` is when the node came into ``state``. ``jobs_lost``: diagnosed runs that had this node, in the window
    that was asked for. ``events``: the last three edges, newest first. ``reason_class`` is an id of reasons.toml, None
    where nobody knows the reason."""

    node: str
    state: str
    since: float
    reason: str | None
    reason_by: str | None
    reason_class: str | None
    jobs_lost: int
    events: Sequence[NodeEventRow]
    recommendation: RecommendationRow | None
    opinion: str


def is_out(state: str) -> bool:
    """Down, drained, draining, failing, or on the way through a reboot; ``state`` as the store holds it."""
    base, _, flags = state.partition("+")
    return base in _OUT_BASE or not _OUT_FLAGS.isdisjoint(flags.split("+"))


def drains(
    now: Iterable[NodeEventRow],
    history: Mapping[str, Sequence[NodeEventRow]],
    active: Iterable[RecommendationRow],
    lost: Mapping[str, int],
    observed: Set[str],
    reason_classes: Mapping[str, str],
) -> list[Drain]:
    """``now``: each node's last edge. ``observed``: nodes of which a record was taken in. ``reason_classes``: reason →
    id of its row."""
    wanted = {row.node: row for row in active}
    rows = [
        _row(edge, history.get(edge.node, ()), wanted.get(edge.node), lost, observed, reason_classes)
        for edge in now
        if is_out(edge.state) or edge.node in wanted
    ]
    return sorted(rows, key=_first_things_first)


def _row(
    edge: NodeEventRow,
    history: Sequence[NodeEventRow],
    recommendation: RecommendationRow | None,
    lost: Mapping[str, int],
    observed: Set[str],
    reason_classes: Mapping[str, str],
) -> Drain:
    return Drain(
        node=edge.node,
        state=edge.state,
        since=_since(edge, history),
        reason=edge.reason,
        reason_by=edge.reason_by,
        reason_class=reason_classes.get(edge.reason or ""),
        jobs_lost=lost.get(edge.node, 0),
        events=tuple(reversed(history[-EVENTS_SHOWN:])),
        recommendation=recommendation,
        opinion=_opinion(edge.node, recommendation, observed),
    )


def _since(edge: NodeEventRow, history: Sequence[NodeEventRow]) -> float:
    """A new reason in the same state is an edge too, and does not make the state younger."""
    since = edge.time
    for event in reversed(history):
        if event.state != edge.state:
            break
        since = min(since, event.time)
    return since


def _opinion(node: str, recommendation: RecommendationRow | None, observed: Set[str]) -> str:
    if recommendation is not None:
        return f"{recommendation.action}: {recommendation.why}"
    return NO_REASON_TO if node in observed else NOT_OBSERVED


def _first_things_first(row: Drain) -> tuple[int, int, float, str]:
    """What wants most comes first, then what waits for a person's word, then what has been out longest."""
    if row.recommendation is None:
        return (0, 0, row.since, row.node)
    action = ACTIONS_ON_MACHINES.index(row.recommendation.action) + 1
    return (-action, 0 if row.recommendation.state == "open" else 1, row.since, row.node)
