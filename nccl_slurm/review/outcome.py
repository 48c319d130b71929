"""What came of an accepted recommendation, by the machine's history: carried out or not, fault back or not."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_slurm.clock import rfc3339
from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.rows import RecommendationRow
from nccl_slurm.recommend.fault import Fault, of_event, of_machine, same
from nccl_slurm.recommend.judgement import classed
from nccl_slurm.recommend.policy import Policy, default

__all__ = ["Outcome", "outcome"]

#: The event of a machine's history that shows an action done.
_DONE = {"reboot": "boot", "replace": "replaced"}
#: Whose reasons show that somebody looks at a node; Slurm and its health checks take nodes out by themselves.
_OF_PEOPLE = ("person", "nccl-slurm")


@dataclass(frozen=True)
class Outcome:
    """``carried_out`` and ``came_back`` are times, None for *not seen*; ``came_back`` is the first time that the same
    fault was seen after it was carried out: as in the ladder, of the same class on the same GPU."""

    carried_out: float | None
    came_back: float | None
    text: str


def outcome(row: RecommendationRow, machine: Machine | None, policy: Policy | None = None) -> Outcome | None:
    """None where nobody accepted it. Without a history nothing was seen, and that is said. ``policy`` None: the
    packaged table."""
    if row.state not in ("accepted", "done") or row.decided is None:
        return None
    if machine is None:
        return Outcome(None, None, "accepted; this machine has no history here")
    done = _carried_out(row, machine, row.decided)
    if done is None:
        return Outcome(None, None, f"accepted {rfc3339(row.decided)}; not seen to be carried out")
    back = _came_back(row, machine, done, policy or default())
    told = f"carried out {rfc3339(done.time)}"
    since = f"the same kind of fault came back {rfc3339(back)}" if back is not None else "no such fault since"
    return Outcome(done.time, back, f"{told}; {since}")


def _carried_out(row: RecommendationRow, machine: Machine, decided: float) -> MachineEvent | None:
    if row.action in _DONE:
        return next(machine.of_kind(_DONE[row.action], decided), None)
    states = (event for event in machine.of_kind("state", decided) if event.name != "UP")
    return next((event for event in states if event.data.get("owner") in _OF_PEOPLE), None)


def _came_back(row: RecommendationRow, machine: Machine, done: MachineEvent, policy: Policy) -> float | None:
    """Where its history has no fault that it rests on, the class alone tells: the decision table's, since readings and
    lines need not have one of their own. That of a board which was taken out can't come back."""
    past = [classed(of_event(event), policy) for event in machine.of_kind("fault")]
    alike = [one for one in past if one.failure_class == row.failure_class and not one.after(row.opened)]
    causes = _last_burst(alike, policy.limit("burst-gap-s"))
    of_boards = [classed(one, policy) for one in of_machine(machine)]
    now = [one for one in of_boards if one.after(done.time, done.uncertainty_s)]
    if causes:
        there = [cause for cause in causes if cause in of_boards]
        again = [one for one in now if any(same(one, cause, past) for cause in there)]
    else:
        again = [one for one in now if one.failure_class == row.failure_class]
    return again[0].time if again else None


def _last_burst(faults: list[Fault], gap_s: float) -> list[Fault]:
    """The newest, and others of about its time: several GPUs may have failed at once."""
    return [one for one in faults if (faults[-1].time or 0.0) - (one.time or 0.0) <= gap_s]
