"""Machines as tests want them: runs that ended, told in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nccl_slurm.history.machine import Machine, MachineEvent

__all__ = ["DAY", "HOUR", "START", "event", "fleet", "lost", "well"]

START, HOUR, DAY = 1_700_000_000.0, 3600.0, 86400.0

#: (day, nodes of the run, class or None where it went well, the node that its verdict proved)
Run = tuple[float, Sequence[str], str | None, str | None]


def well(day: float, *nodes: str) -> Run:
    return day, nodes, None, None


def lost(day: float, *nodes: str, named: str | None = None, failure_class: str = "slurm-node-fail") -> Run:
    return day, nodes, failure_class, named


def event(day: float, kind: str, name: str, failure_class: str | None = None, **data: Any) -> MachineEvent:
    return MachineEvent(START + day * DAY, kind, name, "poll", failure_class=failure_class, data=data)


def fleet(runs: Iterable[Run], nodes: Iterable[str] = (), hours: float = 12.0, **data: Any) -> list[Machine]:
    """Each machine has its node's name as identity, and was seen from `START` on. ``data``: of every run's events."""
    events: Mapping[str, list[MachineEvent]] = {node: [] for node in nodes}
    found = dict(events)
    for number, (day, there, failure_class, named) in enumerate(runs):
        name = "well" if failure_class is None else "failed"
        common = {"job": str(number), "run": 1, "nodes": len(there), "lasted": hours * HOUR, **data}
        for node in there:
            told = common if failure_class is None else {**common, "class": failure_class, "named": node == named}
            found.setdefault(node, []).append(MachineEvent(START + day * DAY, "job", name, "daemon", data=told))
    return [
        Machine(node, node, "compute", START, tuple(sorted(mine, key=lambda one: one.time)))
        for node, mine in sorted(found.items())
    ]
