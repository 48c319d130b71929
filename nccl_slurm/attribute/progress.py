"""Who is behind, by the sequence numbers that each rank tells of itself.

Counts compare only inside one process group, by its shared name (GUID): PG ids are per-process counters. *Enqueued*
beyond the stuck collective is the CPU running ahead of the GPU and proves nothing; *enqueued* short of it is a rank
that never entered the collective in which the others wait. Short of one that another rank has *completed* it can't be:
such counts are of two moments, as those of a dump that an earlier job left, and prove nobody. A rank that is behind in
one group but waits in another is a victim of that other group: only ranks that wait nowhere have stopped by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Fact

__all__ = ["DEFAULT_GROUP", "find", "in_flight", "waiting_for_others"]

#: GUID of torch's default process group: its members are all ranks.
DEFAULT_GROUP = "0"
#: With one witness it may be that one who is out of step.
WITNESSES_MIN = 2
#: Of so many ranks that wait one may be unheard of, where at least that many wait: of a thousand records some get lost.
#: In a small job the rank that nobody heard of is the likelier one to have stopped.
UNHEARD_SHARE, CROWD_MIN = 4, 16

_Counts = Mapping[str, int]


@dataclass(frozen=True)
class Stall:
    """One process group in which ranks wait in collective ``seq`` that ``behind`` never entered. ``apart``: those of
    them that by their count never entered one that others completed."""

    group: str
    seq: int
    waiting: frozenset[int]
    behind: frozenset[int]
    apart: frozenset[int]


def find(scene: Scene) -> Finding | None:
    stalls = [stall for stall in (_stall(scene, group) for group in sorted(_groups(scene))) if stall]
    stalls.sort(key=lambda stall: (-len(stall.waiting), stall.group))
    for stall in stalls:
        stopped = frozenset(rank for rank in stall.behind if not waits_somewhere(scene, rank))
        if stopped:
            return _finding(scene, stall, stopped)
    return next((found for found in (_elsewhere(scene, stall) for stall in stalls) if found), None)


def waiting_for_others(scene: Scene) -> frozenset[int]:
    """Ranks inside a collective that fewer others never entered: what they raise is what waiting brought them."""
    stalls = [stall for stall in (_stall(scene, group) for group in sorted(_groups(scene))) if stall]
    return frozenset(rank for s in stalls if len(s.behind) < len(s.waiting) for rank in s.waiting)


def in_flight(counts: _Counts) -> bool:
    """Entered a collective that it has not completed. Unknown counts are no sign of it."""
    return "enqueued" in counts and "completed" in counts and counts["enqueued"] > counts["completed"]


def waits_somewhere(scene: Scene, rank: int) -> bool:
    row = scene.table.get(rank)
    return rank in scene.waits or (row is not None and any(in_flight(counts) for counts in row.progress.values()))


def _groups(scene: Scene) -> set[str]:
    """Without those in which a rank waits in a send or receive: their counts are of both kinds."""
    mixed = {fact.data.get("pg") for facts in scene.waits.values() for fact in facts if reading.is_p2p(fact)}
    return {group for row in scene.table.values() for group in row.progress if group not in mixed}


def _stall(scene: Scene, group: str) -> Stall | None:
    counts = {rank: row.progress[group] for rank, row in scene.table.items() if group in row.progress}
    flying = {rank: count["completed"] + 1 for rank, count in counts.items() if in_flight(count)}
    if not flying:
        return None
    seq = max(flying.values())
    behind = frozenset(rank for rank, count in counts.items() if count.get("enqueued", seq) < seq)
    waiting = frozenset(rank for rank in flying if rank not in behind)
    done = max((counts[rank]["completed"] for rank in waiting), default=-1)
    apart = frozenset(rank for rank in behind if counts[rank]["enqueued"] < done)
    return Stall(group, seq, waiting, behind, apart) if behind else None


def _finding(scene: Scene, stall: Stall, stopped: frozenset[int]) -> Finding:
    facts = _facts(scene, stall, stopped)
    ranks = sorted(stopped)
    if len(stall.behind) >= len(stall.waiting):
        return _ahead(stall, facts)
    when = ", taken before the others completed more" if stopped & stall.apart else ""
    why = f"never entered collective {stall.seq} of process group {stall.group}, by its own count{when}"
    proven = _proven(scene, stall, stopped)
    return Finding(
        rule="progress.behind",
        failure_class="collective-missing-rank",
        confidence="proven" if proven else "likely",
        summary=f"{rank_list(ranks).capitalize()} never entered collective {stall.seq} of process group {stall.group}, "
        f"in which {len(stall.waiting)} other ranks wait.",
        facts=cite(facts),
        time=min((fact.time for fact in facts if fact.time is not None), default=None),
    ).naming([scene.culprit(rank, why, cite(_own(scene, rank))) for rank in ranks], proven=proven)


def _elsewhere(scene: Scene, stall: Stall) -> Finding | None:
    """One rank waits in something else, all others of the job in this collective: nobody is left whom it could wait
    for. It issued another operation, or in another order, than the rest."""
    odd = min(stall.behind)
    if len(stall.behind) != 1 or stall.waiting | {odd} != scene.expected or not _waits_alone(scene, odd, stall.group):
        return None
    why = f"waits in another operation than collective {stall.seq} of process group {stall.group}, as all others do"
    facts = _facts(scene, stall, stall.behind)
    proven = scene.world is not None and bool(scene.waits) and len(stall.waiting) >= WITNESSES_MIN
    return Finding(
        rule="progress.elsewhere",
        failure_class="collective-mismatch",
        confidence="proven" if proven else "likely",
        summary=f"Rank {odd} {why}: they wait for it and it for them.",
        facts=cite([*scene.waits.get(odd, ())[:1], *facts]),
    ).naming([scene.culprit(odd, why, cite(_own(scene, odd)))], proven=proven)


def _waits_alone(scene: Scene, odd: int, group: str) -> bool:
    """It waits in another group where nobody is as far, or says so of a transport that blocks the process."""
    own = {name: counts for name, counts in scene.table[odd].progress.items() if name != group and in_flight(counts)}
    others = [row.progress for rank, row in scene.table.items() if rank != odd]
    if any(
        theirs.get(name, {}).get("enqueued", -1) > counts["completed"]
        for name, counts in own.items()
        for theirs in others
    ):
        return False
    return bool(own) or any(fact.producer == "gloo" for fact in scene.waits.get(odd, ()))


def _ahead(stall: Stall, facts: Sequence[Fact]) -> Finding:
    """As many ranks are short of the collective as wait in it: the few may have issued one too many."""
    return Finding(
        rule="progress.ahead",
        failure_class="collective-hang-unattributed",
        confidence="possible",
        summary=f"{len(stall.waiting)} ranks wait in collective {stall.seq} of process group {stall.group} and "
        f"{len(stall.behind)} never entered it: too few to tell who is out of step.",
        facts=cite(facts),
    )


def _proven(scene: Scene, stall: Stall, stopped: frozenset[int]) -> bool:
    """Someone's timeout says that this was a hang, and of the group's other ranks all but a few are known to wait.

    Without a timeout two dumps may just have been taken at different moments, unless looks at the running job saw all
    counts rise before and then stand still. A rank that nobody heard of may have
    stopped as well: that makes those who are known to have stopped no victims, if they wait in no group at all.
    Counts of two moments tell nothing of the later one.
    """
    silent = scene.expected - stall.waiting - stall.behind if stall.group == DEFAULT_GROUP else frozenset()
    others = stall.behind - stopped
    hung = bool(scene.waits or scene.sorts.of_kind(reading.STILL)) and len(stall.waiting) >= WITNESSES_MIN
    few = not silent or len(stall.waiting) >= max(CROWD_MIN, UNHEARD_SHARE * len(silent))
    alone = not silent or all(_told_of_all_groups(scene, rank) for rank in stopped)
    return hung and few and alone and not stall.apart and all(waits_somewhere(scene, rank) for rank in others)


def _told_of_all_groups(scene: Scene, rank: int) -> bool:
    """By a dump; the monitor's words count the default group alone, which will do where no other one is heard of."""
    dumped = any(fact.kind == reading.DUMPED for fact in scene.said.get(rank, ()))
    return dumped or _groups(scene) <= {DEFAULT_GROUP}


def _facts(scene: Scene, stall: Stall, stopped: frozenset[int]) -> list[Fact]:
    """The words of those behind first, then one line each of those that wait."""
    own = [fact for rank in sorted(stopped) for fact in _own(scene, rank)]
    return own + [fact for rank in sorted(stall.waiting) for fact in _own(scene, rank, 1)]


def _own(scene: Scene, rank: int, most: int = 4) -> list[Fact]:
    """A rank's own words that carry its counts; else its timeouts."""
    counted = (fact for fact in scene.said.get(rank, ()) if "enqueued" in fact.data)
    return list(islice(counted, most)) or scene.waits.get(rank, [])[:1]
