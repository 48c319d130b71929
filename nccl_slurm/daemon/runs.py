"""Executions of a job, numbered: accounting's records and live jobs → runs. Pure.

A run is told by its start: Slurm's restart count is no key (the epilog of run 0 already carries 1), and 22.05 has no
other id. A `--no-kill` job that loses a node is split by accounting into a RESIZING record and a follower that starts
when the first ends: one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from nccl_slurm.history.rows import RunRow
from nccl_slurm.scheduler.client import Accounted

__all__ = ["START_TOLERANCE_S", "KnownRun", "key_of", "merged", "run_number"]

#: Slurm keeps whole seconds, and its places differ by one (slurmctld, slurmdbd, the prolog's own clock).
START_TOLERANCE_S = 2.0


class KnownRun(Protocol):
    @property
    def run(self) -> int: ...
    @property
    def start(self) -> float | None: ...


def merged(records: Iterable[Accounted]) -> list[Accounted]:
    """Records of any jobs that ever started, RESIZING ones joined with their followers; by job, then by start."""
    started = [record for record in records if record.start is not None and record.nodes]
    ordered = sorted(started, key=lambda r: (r.raw_id, r.start or 0.0, r.record or 0))
    runs: list[Accounted] = []
    for record in ordered:
        if runs and runs[-1].raw_id == record.raw_id and runs[-1].state == "RESIZING":
            runs[-1] = _joined(runs[-1], record)
        else:
            runs.append(record)
    return runs


def _joined(first: Accounted, second: Accounted) -> Accounted:
    """The follower, with the first's start, nodes and steps."""
    nodes = [*first.nodes, *(node for node in second.nodes if node not in first.nodes)]
    steps = {step.id: step for step in [*first.steps, *second.steps]}
    return replace(second, start=first.start, nodes=tuple(nodes), steps=tuple(steps.values()))


def run_number(known: Sequence[KnownRun], start: float, restarts: int = 0) -> int:
    """The run that began at ``start``, or a free number: below those of runs that began later, where one is left, else
    above all. ``restarts`` as slurmctld counts them: runs before this one that may not have been seen yet."""
    for run in known:
        if run.start is not None and abs(run.start - start) <= START_TOLERANCE_S:
            return run.run
    used = {run.run for run in known}
    later = min((run.run for run in known if (run.start or 0.0) > start), default=0)
    return max(set(range(1, later)) - used, default=max(max(used, default=0), restarts) + 1)


def key_of(run: RunRow) -> tuple[str, int, int]:
    return run.cluster, run.raw_id, run.run
