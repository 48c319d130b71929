"""When a run that ended is looked at: all records there, or the nodes had their time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from nccl_slurm.history.rows import RunRow

__all__ = ["in_groups", "in_turn", "missing_nodes", "settled"]


def missing_nodes(nodes: Sequence[str], arrived: Collection[str]) -> list[str]:
    return [node for node in nodes if node not in arrived]


def settled(
    nodes: Sequence[str],
    arrived: Collection[str],
    *,
    end: float,
    last_completing: Mapping[str, float],
    now: float,
    settle_s: float,
    cap_s: float,
) -> bool:
    """A node's time runs from the moment that it left COMPLETING (its epilog was done), at the latest from the poll
    that last saw it so; ``cap_s`` after the end nobody is waited for."""
    if now - end >= cap_s:
        return True
    return all(now - max(end, last_completing.get(node, end)) >= settle_s for node in missing_nodes(nodes, arrived))


def in_turn(runs: Iterable[RunRow]) -> list[RunRow]:
    """Each user's first run before anybody's second: output that takes long to read holds up its own user's."""
    taken: Counter[int | None] = Counter()

    def turn(run: RunRow) -> int:
        taken[run.uid] += 1
        return taken[run.uid]

    return sorted(runs, key=turn)


def in_groups(runs: Iterable[RunRow], size: int) -> list[list[RunRow]]:
    """Of one user each, ``size`` at most; ordered as their first runs are."""
    groups: list[list[RunRow]] = []
    newest: dict[int | None, list[RunRow]] = {}
    for run in runs:
        if len(newest.get(run.uid, ())) in (0, size):
            newest[run.uid] = []
            groups.append(newest[run.uid])
        newest[run.uid].append(run)
    return groups
