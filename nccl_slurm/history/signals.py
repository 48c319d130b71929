"""The seven signals of lemon nodes (Kokolis et al., arXiv 2410.21680), from one machine's own events. Pure.

They are shown beside the blame test and decide nothing: no error rate is known for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nccl_slurm.history.losses import run_size, runs_counted, speaks_of_machine
from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.thresholds import DAY, SIGNALS, Threshold, Thresholds

__all__ = ["Signal", "out_of_service", "signals"]

#: The program's fault, on good hardware.
_OF_PROGRAMS = frozenset({"gpu-app-fault"})
_OUT = frozenset({"DOWN", "ERROR", "FAIL", "DRAIN", "DRAINED", "DRAINING", "FAILING", "INVALID_REG"})
#: Flags of what somebody planned, or of power saving.
_PLANNED = frozenset({"MAINT", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"})


@dataclass(frozen=True)
class Signal:
    """``value``, ``raised``: None where it was not observed, which is no zero."""

    name: str
    value: float | None
    threshold: float
    window_d: float
    raised: bool | None


def signals(machine: Machine, now: float, thresholds: Thresholds, excluded_by: int | None = None) -> tuple[Signal, ...]:
    """In the order of the paper. ``excluded_by``: different jobs that excluded the node, None where nobody counted."""
    return tuple(_signal(name, machine, now, thresholds, excluded_by) for name in SIGNALS)


def _signal(name: str, machine: Machine, now: float, thresholds: Thresholds, excluded_by: int | None) -> Signal:
    row = thresholds.signal(name)
    window = row.window_d or 0.0
    since = now - window * DAY
    value = excluded_by if name == "excl_jobid_count" else _value(name, machine, since, now, row, thresholds)
    return Signal(name, value, row.value, window, None if value is None else value >= row.value)


def _value(
    name: str, machine: Machine, since: float, now: float, row: Threshold, thresholds: Thresholds
) -> float | None:
    if name == "xid_cnt":
        return len({str(event.data["xid"]) for event in _faults(machine, since, now) if "xid" in event.data})
    if name == "tickets":
        return _apart(event.time for event in _tickets(machine) if since <= event.time <= now)
    if name == "out_count":
        return sum(since <= event.time <= now for event in _went_out(machine))
    lost = [event for event in _jobs(machine, since, now) if speaks_of_machine(event, thresholds)]
    if name == "multi_node_node_fails":
        return sum(run_size(event) > 1 and event.data.get("named") is True for event in lost)
    alone = sum(run_size(event) == 1 for event in lost)
    if name == "single_node_node_fails":
        return alone
    runs = sum(runs_counted(event) for event in _jobs(machine, since, now) if run_size(event) == 1)
    return alone / runs if runs >= (row.least or 1) else None


def _jobs(machine: Machine, since: float, now: float) -> Iterator[MachineEvent]:
    return (event for event in machine.of_kind("job", since) if event.time <= now)


def _faults(machine: Machine, since: float, now: float) -> Iterator[MachineEvent]:
    return (
        event
        for event in machine.of_kind("fault", since)
        if event.time <= now and event.failure_class not in _OF_PROGRAMS
    )


def _tickets(machine: Machine) -> Iterator[MachineEvent]:
    """Recommendations that a person accepted; states with a reason that says hardware, when they begin."""
    before = False
    for event in machine.events:
        if event.kind == "action" and event.name == "accepted":
            yield event
        elif event.kind == "state":
            hardware = event.data.get("hardware") is True
            if hardware and not before:
                yield event
            before = hardware


def _went_out(machine: Machine) -> Iterator[MachineEvent]:
    """States in which Slurm gives the node no jobs, when they begin; what stood before the first one is not known."""
    before: bool | None = None
    for event in machine.of_kind("state"):
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
