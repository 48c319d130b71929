"""The seven signals of lemon nodes (Kokolis et al., arXiv 2410.21680), from one machine's own events. Pure.

They are shown beside the blame test and decide nothing: no error rate is known for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.history.losses import run_size, runs_counted, speaks_of_machine
from nccl_slurm.history.machine import EVENT_KINDS, Machine, MachineEvent
from nccl_slurm.history.thresholds import DAY, SIGNALS, Threshold, Thresholds

__all__ = ["Signal", "out_of_service", "signals"]

#: The program's fault, on good hardware.
_OF_PROGRAMS = frozenset({"gpu-app-fault"})
_OUT = frozenset({"DOWN", "ERROR", "FAIL", "DRAIN", "DRAINED", "DRAINING", "FAILING", "INVALID_REG"})
#: Flags of what somebody planned, or of power saving (scontrol show node says ``MAINTENANCE``).
_PLANNED = frozenset({"MAINT", "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED"}) | frozenset(
    {"POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"}
)

#: Kinds of events that a signal rests on.
_NEEDS: Mapping[str, frozenset[str]] = {
    "xid_cnt": frozenset({"fault", "job"}),
    "tickets": frozenset({"state", "action"}),
    "out_count": frozenset({"state"}),
    "multi_node_node_fails": frozenset({"job"}),
    "single_node_node_fails": frozenset({"job"}),
    "single_node_node_failure_rate": frozenset({"job"}),
    "excl_jobid_count": frozenset({"excluded"}),
}


@dataclass(frozen=True)
class Signal:
    """``value``, ``raised``: None where it was not observed, which is no zero."""

    name: str
    value: float | None
    threshold: float
    window_d: float
    raised: bool | None


def signals(
    machine: Machine,
    now: float,
    thresholds: Thresholds,
    kinds: Collection[str] = EVENT_KINDS,
    excluded_since: float | None = None,
) -> tuple[Signal, ...]:
    """In the order of the paper.

    ``kinds``: of events that the source of the machine tells of; what rests on others is not observed.
    ``excluded_since``: when the daemon began to ask for jobs' exclude lists, None: never.
    """
    events = [event for event in machine.events if event.time <= now]
    values: dict[str, float | None] = {}
    for name, needs in _NEEDS.items():
        row = thresholds.signal(name)
        since = now - (row.window_d or 0.0) * DAY
        values[name] = _value(name, events, since, row, thresholds) if needs <= set(kinds) else None
    if excluded_since is None:
        values["excl_jobid_count"] = None
    return tuple(_signal(name, values[name], thresholds.signal(name)) for name in SIGNALS)


def _signal(name: str, value: float | None, row: Threshold) -> Signal:
    return Signal(name, value, row.value, row.window_d or 0.0, None if value is None else value >= row.value)


def _value(
    name: str, events: Sequence[MachineEvent], since: float, row: Threshold, thresholds: Thresholds
) -> float | None:
    """``events``: until now. A window without a run tells nothing of faults: node records come with runs."""
    if name == "excl_jobid_count":
        return len({event.name for event in events if event.kind == "excluded" and event.time >= since})
    if name in ("tickets", "out_count"):
        return _of_states(name, events, since)
    recent = [event for event in events if event.time >= since]
    runs = [event for event in recent if event.kind == "job"]
    if name == "xid_cnt":
        xids = {str(event.data["xid"]) for event in recent if _is_xid(event)}
        return len(xids) if runs or xids else None
    return _of_runs(name, runs, row, thresholds) if runs else None


def _of_states(name: str, events: Sequence[MachineEvent], since: float) -> float | None:
    """From before the window on: a state that stands when it begins is no edge in it."""
    if not any(event.kind in ("state", "action") for event in events):
        return None
    found = _tickets(events) if name == "tickets" else _went_out(events)
    times = [event.time for event in found if event.time >= since]
    return _apart(times) if name == "tickets" else len(times)


def _of_runs(name: str, runs: Sequence[MachineEvent], row: Threshold, thresholds: Thresholds) -> float | None:
    lost = [event for event in runs if speaks_of_machine(event, thresholds)]
    if name == "multi_node_node_fails":
        return sum(run_size(event) > 1 and event.data.get("named") is True for event in lost)
    alone = sum(run_size(event) == 1 for event in lost)
    if name == "single_node_node_fails":
        return alone
    count = sum(runs_counted(event) for event in runs if run_size(event) == 1)
    return alone / count if count >= (row.least or 1) else None


def _is_xid(event: MachineEvent) -> bool:
    return event.kind == "fault" and "xid" in event.data and event.failure_class not in _OF_PROGRAMS


def _tickets(events: Iterable[MachineEvent]) -> Iterator[MachineEvent]:
    """Recommendations that a person accepted; states with a reason that says hardware, when they begin."""
    before = False
    for event in events:
        if event.kind == "action" and event.name == "accepted":
            yield event
        elif event.kind == "state":
            hardware = event.data.get("hardware") is True
            if hardware and not before:
                yield event
            before = hardware


def _went_out(events: Iterable[MachineEvent]) -> Iterator[MachineEvent]:
    """States in which Slurm gives the node no jobs, when they begin; what stood before the first one is not known."""
    before: bool | None = None
    for event in events:
        if event.kind == "state":
            out = out_of_service(event.name)
            if out and before is False:
                yield event
            before = out


def out_of_service(state: str) -> bool:
    """Of a state as the store has it (``UP+DRAIN``): no jobs, but not for power saving, maintenance, asked boots."""
    parts = frozenset(state.split("+"))
    return bool(parts & _OUT) and not parts & _PLANNED


def _apart(times: Iterable[float]) -> int:
    """Those within a day of one that counted are the same repair."""
    count, last = 0, float("-inf")
    for at in sorted(times):
        if at - last >= DAY:
            count, last = count + 1, at
    return count
