"""slurmdbd's node events → the edges of a time in which nobody polled, without those that polls saw. Pure.

Two things slurmdbd does not tell: a drain while a job runs has no row until the job has ended, and a row has one flag
in place of all. So where polls tell of the same, theirs stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from nccl_slurm.daemon.health import failed_state, health
from nccl_slurm.history.rows import NodeEventRow
from nccl_slurm.scheduler.client import NodeEvent, NodeState

__all__ = ["missed_edges"]

#: A row that begins so soon after another one ended follows it without a pause.
_NEXT_S = 1.0
#: Words of rows that are a flag by themselves, or a base that polls write otherwise.
_STATES = {
    "DRAIN": "UP+DRAIN",
    "DRAINED": "UP+DRAIN",
    "DRAINING": "UP+DRAIN",
    "FAIL": "UP+FAIL",
    "FAILING": "UP+FAIL",
    "BOOT": "DOWN",
    "REBOOT": "DOWN",
    "IDLE": "UP",
    "ALLOCATED": "UP",
    "MIXED": "UP",
}


def missed_edges(
    rows: Iterable[NodeEvent], known: Iterable[NodeEventRow], now: Mapping[str, NodeState], since: float, until: float
) -> list[NodeEventRow]:
    """Edges after ``since``, up to ``until``, by node and time.

    ``known``: stored edges of these nodes: the last one up to ``since``, and all later ones. ``now``: states as polled
    at ``until``; a row that is still open is in the state that its node is in.
    """
    stored: dict[str, list[NodeEventRow]] = {}
    for edge in sorted(known, key=lambda one: one.time):
        stored.setdefault(edge.node, []).append(edge)
    found: list[NodeEventRow] = []
    for node, group in groupby(sorted(rows, key=lambda row: (row.node, row.start)), key=lambda row: row.node):
        edges = [edge for edge in _edges(list(group), now.get(node)) if since < edge.time <= until]
        found += _not_known(edges, stored.get(node, []))
    return found


def _edges(rows: Sequence[NodeEvent], now: NodeState | None) -> Iterator[NodeEventRow]:
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        by = row.user.partition("(")[0] if row.user else None
        yield NodeEventRow(row.node, row.start, _state(row, now), row.reason, by or None, "slurmdbd")
        if row.end is not None and not (after is not None and after.start <= row.end + _NEXT_S):
            yield NodeEventRow(row.node, row.end, "UP", None, None, "slurmdbd")


def _state(row: NodeEvent, now: NodeState | None) -> str:
    if row.end is None and now is not None and now.reason == row.reason and health(now) != "UP":
        return health(now)
    flags = set(row.flags) | ({"REBOOT_ISSUED"} if row.state == "BOOT" else set())
    base, *more = _STATES.get(row.state, row.state).split("+")
    return "+".join([base, *sorted({*more, *flags})])


def _not_known(edges: Sequence[NodeEventRow], stored: Sequence[NodeEventRow]) -> list[NodeEventRow]:
    kept: list[NodeEventRow] = []
    for number, edge in enumerate(edges):
        after = edges[number + 1] if number + 1 < len(edges) else None
        earlier = [one for one in (*stored, *kept) if one.time <= edge.time]
        before = max(earlier, key=lambda one: one.time, default=None)
        later = next((one for one in stored if one.time > edge.time), None)
        if after is not None and later is not None and after.time < later.time:
            later = None
        if not _alike(edge, before) and not _alike(edge, later):
            kept.append(edge)
    return kept


def _alike(edge: NodeEventRow, other: NodeEventRow | None) -> bool:
    """Polls write all flags, slurmdbd one: what they agree in is the reason, and whether the node was in use."""
    return other is not None and edge.reason == other.reason and _use(edge.state) == _use(other.state)


def _use(state: str) -> str:
    if failed_state(state):
        return "failed"
    return "drained" if "DRAIN" in state.split("+") else "up"
