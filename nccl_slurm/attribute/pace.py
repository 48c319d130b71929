"""Ranks that are slow all along, by detectors that time each rank's own work.

Steps of a synchronous job take equally long on all its ranks, so only such reports tell who is slow. They are the job's
own words: whom they name is a suspect, and a slow rank ends nothing by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact, Inference

__all__ = ["left", "notes", "stopped"]

#: Reports of one file that are looked at, the last ones: the first steps are slow for reasons of their own.
RECENT = 8
#: A rank that is named fewer times was slow for a while.
REPEATED = 2
#: A pipeline's stages and a first batch differ by less than this, as a rule.
SLOW_PERCENT = 150
#: More than this many are no outliers.
FEW = 8


def stopped(scene: Scene) -> Finding | None:
    """The detector ended the run; all ranks leave with its exit code, so none of them failed."""
    facts = scene.sorts.of_kind(*reading.STOPPED_FOR_PACE)
    if not facts:
        return None
    slow = _slow(scene, least=1)
    text = f"A detector of slow ranks ended the run. {_named(slow)}".rstrip()
    return _finding("pace.stopped", text, slow, facts)


def left(scene: Scene) -> Finding | None:
    """Nothing ended the run that is known of: then what was slow is all there is."""
    slow = _slow(scene)
    if not slow or (scene.job is not None and scene.job.state not in (None, "RUNNING")):
        return None
    return _finding("pace.slow", f"All ranks work, not all at one pace. {_named(slow)}", slow, [])


def notes(scene: Scene) -> Iterator[Inference]:
    slow = _slow(scene)
    if slow:
        facts = [fact for reports in slow.values() for fact in reports]
        yield Inference(f"{_named(slow)} A hint, no proof.", "pace.slow", cite(facts))


def _finding(rule: str, text: str, slow: dict[int, list[Fact]], more: Sequence[Fact]) -> Finding:
    suspects = [Culprit(_named({rank: facts}), rank=rank, evidence=cite(facts)) for rank, facts in slow.items()]
    facts = [*more, *(fact for reports in slow.values() for fact in reports)]
    first = min((fact.time for fact in facts if fact.time is not None), default=None)
    return Finding(rule, "straggler", "likely", text, suspects=suspects, facts=cite(facts), time=first)


def _named(slow: dict[int, list[Fact]]) -> str:
    if not slow:
        return ""
    most = max(len(facts) for facts in slow.values())
    return f"Of the last reports of who is slow, {most} name {rank_list(sorted(slow))}."


def _slow(scene: Scene, least: int = REPEATED) -> dict[int, list[Fact]]:
    """Rank → the reports that name it; nobody where they name many, or another one each time."""
    by_file: dict[str | None, list[Fact]] = defaultdict(list)
    for fact in scene.sorts.of_kind(*reading.PACE):
        by_file[fact.file].append(fact)
    found: dict[int, list[Fact]] = {}
    for facts in by_file.values():
        recent = facts[-RECENT:]
        named = Counter(rank for fact in recent for rank in reading.slow_ranks(fact, SLOW_PERCENT))
        for rank, count in sorted(named.items()):
            if count >= least and 2 * count >= len(recent) and scene.known(rank):
                found[rank] = [fact for fact in recent if rank in reading.slow_ranks(fact, SLOW_PERCENT)]
    return found if len(found) <= FEW else {}
