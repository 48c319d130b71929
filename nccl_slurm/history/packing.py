"""An event of a machine as a row of the table, and back. Most rows are runs that went well: what is empty is null."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import RowMapping

from nccl_slurm.history.database import fitting
from nccl_slurm.history.distinct import key_of_event
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.schema import machine_events

__all__ = ["packed_event", "unpacked_event"]

#: Of a line of a log; the record and the report have all of it.
_TEXT = 300


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


def unpacked_event(row: RowMapping) -> MachineEvent:
    return MachineEvent(
        time=row["time"],
        kind=row["kind"],
        name=row["name"],
        source=row["source"],
        text=row["text"] or "",
        failure_class=row["class"],
        uncertainty_s=row["uncertainty"] or 0.0,
        data=json.loads(row["data"]) if row["data"] else {},
    )
