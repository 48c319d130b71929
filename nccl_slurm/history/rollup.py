"""Runs that went well, counted: one event a period and run size in place of one a run. Pure.

They are the denominator of every rate, so their number stays, and whose they were goes.
"""

from __future__ import annotations

from collections.abc import Iterable

from nccl_slurm.history.machine import MachineEvent

__all__ = ["DAY_S", "MONTH_S", "rolled_up"]

DAY_S = 86400.0
MONTH_S = 30 * DAY_S

_Key = tuple[float, int, str | None]
#: Runs, and seconds of all of them; None where one does not tell.
_Sum = tuple[int, float | None]


def rolled_up(events: Iterable[MachineEvent], before: float, period_s: float) -> list[MachineEvent]:
    """Well-ended runs older than ``before`` as counts of whole periods since 1970 UTC; all else as it is.

    An event of a count has ``count``, ``nodes`` (nodes of each run) and ``lasted`` (seconds of all of them, where each
    told it) in its data, and the middle of its period as its time, with half the period as uncertainty. A period that
    reaches beyond ``before`` stays as it is.
    """
    kept: list[MachineEvent] = []
    counts: dict[_Key, _Sum] = {}
    for event in events:
        start = event.time // period_s * period_s
        if not _is_well(event) or start + period_s > before or event.uncertainty_s > period_s / 2:
            kept.append(event)
        else:
            key = (start, int(event.data.get("nodes", 1)), event.data.get("class"))
            counts[key] = _plus(counts.get(key, (0, 0.0)), event)
    kept += [_count(key, total, period_s) for key, total in counts.items()]
    return sorted(kept, key=lambda event: event.time)


def _is_well(event: MachineEvent) -> bool:
    return event.kind == "job" and event.name == "well"


def _plus(total: _Sum, event: MachineEvent) -> _Sum:
    lasted = event.data.get("lasted")
    both = None if total[1] is None or lasted is None else total[1] + float(lasted)
    return total[0] + int(event.data.get("count", 1)), both


def _count(key: _Key, total: _Sum, period_s: float) -> MachineEvent:
    start, nodes, failure_class = key
    data: dict[str, object] = {"count": total[0], "nodes": nodes}
    if total[1] is not None:
        data["lasted"] = total[1]
    if failure_class is not None:
        data["class"] = failure_class
    return MachineEvent(start + period_s / 2, "job", "well", "daemon", uncertainty_s=period_s / 2, data=data)
