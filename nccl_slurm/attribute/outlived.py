"""Whether a rank outlived the error that it told: then it was handled, and is no failure, whatever its words.

Its own later lines tell that (steps, a collective that it entered long after), or the others', or hours until the end.
Lines in one file are not always in the order of time: Python holds back what it prints into a file (8 KiB and more) and
writes it when the process ends, behind the traceback. So steps behind the error of a rank whose process is known to
have ended by itself tell nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.clocks import Moment
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Fact

__all__ = ["ended_by_itself", "noticed", "outlived", "was_alive"]

#: Between a rank's failure and the moment at which others begin to wait for it lie a step, an evaluation, a checkpoint.
ENTERED_S = 600.0
#: torch's timeouts are 10 and 30 minutes unless told otherwise: a dead rank is noticed in an hour.
NOTICED_S = 3600.0
#: Signals that a process earns by itself.
_DEADLY = frozenset({-4, -7, -8, -11})


def outlived(scene: Scene, rank: int, error: Fact) -> bool:
    if _waited_long_after(scene, error):
        return True
    if ended_by_itself(scene, rank):
        return False
    return _went_on(scene, rank, error) or _spoke_long_after(scene, rank, error) or _ended_long_after(scene, error)


def ended_by_itself(scene: Scene, rank: int) -> bool:
    """With an exit code or a signal of its own, and not after the run was ended from outside."""
    code = scene.exits.get(rank)
    own = code is not None and (code > 0 or code in _DEADLY)
    return own and not (scene.ending.was and not _before_end(scene, _exit_lines(scene, rank)))


def was_alive(scene: Scene, rank: int) -> bool:
    """When its agent or Slurm ended it with SIGTERM."""
    return scene.exits.get(rank) == -15 or rank in scene.ended_by_agent


def noticed(scene: Scene, rank: int) -> bool:
    """Before the run was ended from outside its process ended, or anybody else reacted to something."""
    if ended_by_itself(scene, rank):
        return True
    reactions = scene.sorts.where(lambda fact: fact.producer != "slurm" and fact.role == "consequence")
    waits = [fact for fact in scene.wait_lines if fact.rank != rank]
    return _before_end(scene, [*waits, *(fact for fact in reactions if fact.rank != rank)])


def _before_end(scene: Scene, facts: Iterable[Fact]) -> bool:
    return any(scene.ended_before(fact) is False for fact in facts)


def _exit_lines(scene: Scene, rank: int) -> list[Fact]:
    own = [fact for fact in scene.said.get(rank, ()) if reading.number(fact.data, "exitcode", "exit") is not None]
    return own or scene.by_task.get(rank, [])


def _went_on(scene: Scene, rank: int, error: Fact) -> bool:
    """By steps that it told after the error, or anybody without a label in the same file: a step needs all ranks. Where
    somebody reacted, these may be small ones between two collectives."""
    done: dict[tuple[str | None, object], set[object]] = defaultdict(set)
    for step in scene.sorts.of_kind(reading.STEP):
        whose = step.rank == rank or (step.rank is None and step.file == error.file and not scene.reacted)
        if whose and _is_behind(scene, step, error) and step.data.get("attempt") == error.data.get("attempt"):
            done[step.file, step.data.get("word")].add(step.data.get("count"))
    return any(len(counts) >= reading.STEPS_MIN for counts in done.values())


def _is_behind(scene: Scene, step: Fact, error: Fact) -> bool:
    """By their places in one file, else by time."""
    if step.file == error.file and None not in (step.offset, error.offset):
        return (step.offset or 0) > (error.offset or 0)
    return _later_by(scene, error, scene.moment(step), 0.0)


def _waited_long_after(scene: Scene, error: Fact) -> bool:
    """All who tell since when they waited began long after: until then the collectives before had ended for all."""
    began = [
        Moment(since, fact.uncertainty_s or 0.0, moment.host)
        for fact in scene.wait_lines
        if (since := reading.waited_since(fact)) is not None and (moment := scene.moment(fact)) is not None
    ]
    return bool(began) and all(_later_by(scene, error, one, ENTERED_S) for one in began)


def _spoke_long_after(scene: Scene, rank: int, error: Fact) -> bool:
    row = scene.table.get(rank)
    last = None if row is None or row.last is None else Moment(row.last, row.uncertainty_s or 0.0, scene.host(rank))
    return _later_by(scene, error, last, NOTICED_S)


def _ended_long_after(scene: Scene, error: Fact) -> bool:
    end = scene.ending.moment
    end = end._replace(host=scene.node(end.host)) if end is not None else None
    return _later_by(scene, error, end, NOTICED_S) and error.rank is not None and not noticed(scene, error.rank)


def _later_by(scene: Scene, error: Fact, moment: Moment | None, seconds: float) -> bool:
    own = scene.moment(error)
    return own is not None and moment is not None and scene.clocks.earlier(own, moment, seconds)
