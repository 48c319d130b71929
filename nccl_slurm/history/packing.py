"""An event of a machine as a row of the table, and back. Most rows are runs that went well: what is empty is null."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nccl_slurm.history.database import fitting
from nccl_slurm.history.distinct import key_of_event
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.schema import machine_events

__all__ = ["EVENT_COLUMNS", "packed_event", "unpacked_event"]

#: Of a line of a log; the record and the report have all of it.
_TEXT = 300


EVENT_COLUMNS = tuple(
    machine_events.c[name] for name in ("time", "kind", "name", "source", "text", "class", "uncertainty", "data")
)


def packed_event(machine: int, event: MachineEvent) -> dict[str, Any]:
    row = {
        "machine": machine,
        "time": event.time,
        "key": key_of_event(event),
        "kind": event.kind,
        "name": event.name,
        "source": event.source,
        "text": event.text[:_TEXT] or None,
        "class": event.failure_class,
        "uncertainty": event.uncertainty_s or None,
        "data": json.dumps(dict(event.data), sort_keys=True, separators=(",", ":")) if event.data else None,
    }
    return fitting(machine_events, row)


def unpacked_event(row: Sequence[Any]) -> MachineEvent:
    """Of a row of `EVENT_COLUMNS`; by place, as a machine of two years has hundreds."""
    time, kind, name, source, text, failure_class, uncertainty, data = row[:8]
    told = json.loads(data) if data else {}
    return MachineEvent(time, kind, name, source, text or "", failure_class, uncertainty or 0.0, told)
