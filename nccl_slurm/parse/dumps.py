"""Flight recorder dumps that are left from an earlier attempt or job: they look present, and their rank behind.

A dump has a fixed name, so a restart's dumps overwrite those before it, one rank at a time, and a rank that does not
dump again keeps its old one.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Sequence

from nccl_slurm.model import Gap
from nccl_slurm.parse.flight_recorder import Dump, Group
from nccl_slurm.parse.source import Source

__all__ = ["Dumped", "of_one_world", "of_the_last_start"]

#: What two nodes' clocks may differ by: each is within 300 s, the life of munge's credentials.
APART_S = 600.0
#: Stamps without a zone are read in that of the reader, who may be anywhere where he is not the node itself: zones lie
#: between -12 and +14 hours.
ZONES_S = 26 * 3600.0


class Dumped(NamedTuple):
    """A dump and its file."""

    source: Source
    dump: Dump


def of_one_world(dumps: Sequence[Dumped], told: Iterable[int]) -> tuple[list[Dumped], list[Gap]]:
    """Without dumps of another world size than the logs tell, or where they tell none, than the newest dump has."""
    sizes = {one.dump.world_size for one in dumps if one.dump.world_size is not None}
    told = set(told)
    if not sizes or len(sizes | told) < 2 or len(told) > 1:
        return list(dumps), []
    newest = max((one for one in dumps if one.dump.world_size is not None), key=_written)
    size = next(iter(told & sizes), None if told else newest.dump.world_size)
    if size is None:
        return list(dumps), []
    kept = [one for one in dumps if one.dump.world_size in (None, size)]
    why = f"a flight recorder dump of a job of other size, and the newest is of {size} ranks; not used"
    return kept, [Gap(one.source.name, why) for one in dumps if one.dump.world_size not in (None, size)]


def of_the_last_start(
    dumps: Mapping[int, Dumped], starts: Mapping[int, float], oldest: float | None
) -> tuple[dict[int, Dumped], list[Gap]]:
    """Without dumps that were made before their rank's process began.

    ``starts``: rank → first stamp of its newest process. ``oldest``: first stamp in any log.
    """
    gaps, kept = [], {}
    for rank, one in dumps.items():
        why = _outlived(rank, one, dumps, starts, oldest)
        if why is None:
            kept[rank] = one
        else:
            gaps.append(Gap(one.source.name, f"a flight recorder dump of an earlier attempt or job: {why}; not used"))
    return kept, gaps


def _outlived(
    rank: int, one: Dumped, dumps: Mapping[int, Dumped], starts: Mapping[int, float], oldest: float | None
) -> str | None:
    last = one.dump.until
    zones = ZONES_S if one.source.host is None else 0.0
    if last is not None and rank in starts and last + zones < starts[rank]:
        return f"rank {rank} began anew after its last entry"
    if oldest is not None and 0 < one.source.mtime < oldest - APART_S - zones:
        return "written before any line of the logs"
    if any(_is_of_a_run_before(one, other) for other in dumps.values() if other is not one):
        return "other ranks counted anew after its last entry"
    return None


def _is_of_a_run_before(one: Dumped, other: Dumped) -> bool:
    """``one`` had made its last entry when ``other`` entered a collective of that number, and ``one`` completed it.

    In one run nobody completes a collective that another rank has yet to enter: a restart counts anew. What was entered
    only is the CPU running ahead, or waiting for a rank that starts late.
    """
    since, until = other.dump.since, one.dump.until
    same = one.source.host is not None and one.source.host == other.source.host
    if since is None or until is None or since <= until + (0.0 if same else APART_S):
        return False
    theirs = {group.name: group.held for group in other.dump.groups}
    return any(_completed(group, theirs.get(group.name)) for group in one.dump.groups)


def _completed(group: Group, theirs: tuple[int, int] | None) -> bool:
    """A collective that both rings hold, by its number."""
    if group.held is None or theirs is None:
        return False
    return max(group.held[0], theirs[0]) <= min(group.held[1], theirs[1], group.counters["completed"])


def _written(one: Dumped) -> tuple[float, float]:
    return one.dump.until or 0.0, one.source.mtime
