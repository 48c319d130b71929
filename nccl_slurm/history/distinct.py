"""What makes an event the same one, so that each is kept once. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nccl_slurm.history.machine import MachineEvent

__all__ = ["BOOT_S", "FAULT_S", "distinct", "key_of_event", "last_of"]

#: The same error within so many seconds is one: a driver tells of one fault in bursts, and a hook and its neighbour's
#: read the same lines.
FAULT_S = 5.0
#: No machine boots twice within so many seconds; Slurm, the node and slurmdbd tell times of one boot that differ.
BOOT_S = 120.0

#: What a fault is about: the GPU, the device, the link. Counts and process ids differ from line to line.
_ABOUT = ("gpu", "xid", "sxid", "device", "port", "link", "interface", "cpu", "module", "action", "configured")
_DIGITS = re.compile(r"(?:0x)?[0-9a-f]*[0-9][0-9a-f]*")


def key_of_event(event: MachineEvent) -> int:
    """63 bits: equal for what is the same at another time. Job outcomes are told apart by job and run alone, so that a
    new verdict takes the place of the old one."""
    about: list[object]
    if event.kind == "job":
        about = (
            [event.data.get(name) for name in ("job", "run")]
            if "job" in event.data
            else [event.data.get("nodes"), event.data.get("class")]
        )
    elif event.kind == "fault":
        about = [event.name, *(event.data.get(name) for name in _ABOUT), _form(event)]
    elif event.kind == "boot":
        about = []
    else:
        about = [event.name, *sorted((name, str(value)) for name, value in event.data.items())]
    text = json.dumps([event.kind, *about], sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big") >> 1


def _form(event: MachineEvent) -> str | None:
    """The words without numbers, where nothing else tells what a fault is about."""
    if any(event.data.get(name) is not None for name in _ABOUT):
        return None
    return _DIGITS.sub("#", event.text.lower())[:200]


def last_of(event: MachineEvent) -> float:
    """When a burst ended; the event's own time where it was no burst."""
    last = event.data.get("last")
    return float(last) if isinstance(last, (int, float)) else event.time


def distinct(events: Iterable[MachineEvent], known: Sequence[MachineEvent]) -> list[MachineEvent]:
    """Those of ``events`` that are not in ``known``, in order of time; repeats among them become one with a count."""
    kept: list[MachineEvent] = []
    seen: dict[int, list[MachineEvent]] = {}
    for event in known:
        seen.setdefault(key_of_event(event), []).append(event)
    for event in sorted(_bursts(events), key=lambda one: one.time):
        others = seen.setdefault(key_of_event(event), [])
        if not any(_same(event, other) for other in others):
            others.append(event)
            kept.append(event)
    return kept


def _bursts(events: Iterable[MachineEvent]) -> list[MachineEvent]:
    """Faults that follow each other within `FAULT_S` as one, with ``count`` and ``last``."""
    bursts: list[MachineEvent] = []
    open_bursts: dict[int, int] = {}
    for event in sorted(events, key=lambda one: one.time):
        key = key_of_event(event)
        at = open_bursts.get(key)
        if event.kind == "fault" and at is not None and event.time - last_of(bursts[at]) <= FAULT_S:
            bursts[at] = _joined(bursts[at], event)
        else:
            open_bursts[key] = len(bursts)
            bursts.append(event)
    return bursts


def _joined(burst: MachineEvent, event: MachineEvent) -> MachineEvent:
    count = _count(burst) + _count(event)
    return replace(burst, data={**burst.data, "count": count, "last": last_of(event)})


def _count(event: MachineEvent) -> int:
    count = event.data.get("count", 1)
    return count if isinstance(count, int) else 1


def _same(one: MachineEvent, two: MachineEvent) -> bool:
    """Of equal keys: at the same time, as near as the kind and both clocks allow."""
    if one.kind == "job":
        return one.time == two.time
    slack = {"fault": FAULT_S, "boot": BOOT_S + one.uncertainty_s + two.uncertainty_s}.get(one.kind, 1.0)
    return one.time - slack <= last_of(two) and two.time - slack <= last_of(one)
