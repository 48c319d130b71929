"""What the store keeps of a run beside its report: node records with their snapshots, and each machine's past."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_slurm.bundle.part import Part, folder_of, json_part, text_part
from nccl_slurm.clock import rfc3339

__all__ = ["NODES_MAX", "Kept", "kept_of", "of_records"]

#: Nodes whose record goes in: those that are named first. A record has up to 4 MiB.
NODES_MAX = 64
_EVENTS_MAX = 1000


@dataclass(frozen=True)
class Kept:
    """``run``: the store's row. ``records`` by node, ``more``: how many are not among them. ``machines``: node →
    (identity, events)."""

    run: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machines: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] = field(default_factory=dict)
    more: int = 0


def kept_of(store: Any, jobid: str, number: int | None, nodes: Iterable[str]) -> Kept:
    """``nodes``: those that are named, whose machines' past is wanted. Raises StoreError."""
    from nccl_slurm.daemon.runs import key_of

    runs = [row for row in store.runs_of(jobid) if number is None or row.run == number]
    if not runs:
        return Kept()
    named = list(nodes)
    rows = sorted(store.records(*key_of(runs[-1])), key=lambda row: (row.node not in named, row.node))
    records = {row.node: row.record for row in rows[:NODES_MAX]}
    machines = {}
    for node in named:
        machine = store.machine(node)
        if machine.events:
            machines[node] = (machine.identity, [_event(event) for event in machine.events[-_EVENTS_MAX:]])
    return Kept(_row(runs[-1]), records, machines, len(rows) - len(records))


def _row(run: Any) -> dict[str, Any]:
    told = dict(vars(run))
    told["steps"] = [dict(vars(step)) for step in run.steps]
    for key in ("submit", "start", "end"):
        told[key] = rfc3339(told[key])
    return told


def _event(event: Any) -> dict[str, Any]:
    return {
        "time": rfc3339(event.time),
        "kind": event.kind,
        "name": event.name,
        "text": event.text,
        "class": event.failure_class,
        "source": event.source,
        "data": dict(event.data),
    }


def of_records(kept: Kept) -> list[Part]:
    folders = folder_of([*kept.records, *kept.machines])
    parts = [json_part("slurm/run.json", kept.run, "the run as the daemon keeps it", 3)] if kept.run else []
    for node, record in sorted(kept.records.items()):
        parts += _of_record(f"nodes/{folders[node]}", record)
    for node, (identity, events) in sorted(kept.machines.items()):
        value = {"node": node, "identity": identity, "events": events}
        what = "what happened to this machine before: faults, boots, states, runs"
        parts.append(json_part(f"nodes/{folders[node]}/history.json", value, what, 6))
    return parts


def _of_record(folder: str, record: Mapping[str, Any]) -> Iterable[Part]:
    snapshots = record["snapshots"]
    what = "the node's record of the run, whole: `nccl-slurm rules test` takes it"
    yield json_part(f"{folder}/record.json", record, what, 5)
    for when in ("before", "after"):
        if snapshots[when] is not None:
            yield json_part(f"{folder}/{when}.json", snapshots[when], f"the node's state {when} the run", 4)
    if record["kernel_events"]:
        lines = "\n".join(_kernel(event) for event in record["kernel_events"])
        yield text_part(f"{folder}/kernel.txt", lines, "kernel lines of this node inside the run's window", 1)


def _kernel(event: Mapping[str, Any]) -> str:
    return f"{rfc3339(event['time']) or 'no clock'}  {event['text']}"
