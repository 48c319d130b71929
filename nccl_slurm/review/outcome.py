"""What came of an accepted recommendation, by the machine's history: carried out or not, fault back or not."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_slurm.clock import rfc3339
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.rows import RecommendationRow

__all__ = ["Outcome", "outcome"]

#: The event of a machine's history that shows an action done.
_DONE = {"reboot": "boot", "replace": "replaced"}


@dataclass(frozen=True)
class Outcome:
    """``carried_out`` and ``came_back`` are times, None for *not seen*; ``came_back`` is the first fault of the same
    class after it was carried out."""

    carried_out: float | None
    came_back: float | None
    text: str


def outcome(row: RecommendationRow, machine: Machine | None) -> Outcome | None:
    """None where nobody accepted it. Without a history nothing was seen, and that is said."""
    if row.state not in ("accepted", "done") or row.decided is None:
        return None
    if machine is None:
        return Outcome(None, None, "accepted; this machine has no history here")
    done = _carried_out(row, machine, row.decided)
    if done is None:
        return Outcome(None, None, f"accepted {rfc3339(row.decided)}; not seen to be carried out")
    back = next(
        (event.time for event in machine.of_kind("fault", done) if event.failure_class == row.failure_class), None
    )
    told = f"carried out {rfc3339(done)}"
    since = f"the same kind of fault came back {rfc3339(back)}" if back is not None else "no such fault since"
    return Outcome(done, back, f"{told}; {since}")


def _carried_out(row: RecommendationRow, machine: Machine, decided: float) -> float | None:
    if row.action in _DONE:
        return next((event.time for event in machine.of_kind(_DONE[row.action], decided)), None)
    taken_out = [event.time for event in machine.of_kind("state", decided) if event.name != "UP"]
    return taken_out[0] if taken_out else None
