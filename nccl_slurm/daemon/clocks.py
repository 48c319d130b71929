"""How far the clock of each node of a run was off, from what is there anyway.

chronyd's own measure counts where all nodes have one. Else the controller's clock is the measure, since four moments
of every run bind a node's clock to it: slurmctld starts the run *before* the node's prolog looks at its clock, and the
node writes its record *before* the daemon stores it. So the node's clock is ahead of the controller's by at most
``prolog - start`` and at least by ``written - received``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Job

__all__ = ["Offset", "offsets"]

#: Slurm and the prolog keep whole seconds.
_WHOLE_S = 1.0


class Offset(NamedTuple):
    """``seconds`` ahead of the others' measure, give or take ``error_s``."""

    seconds: float
    error_s: float


def offsets(job: Job, records: Sequence[RecordRow]) -> dict[str, Offset]:
    """By node; one that can't be measured is absent. All of one run are against the same measure."""
    kept = {row.node: _by_chrony(row.record) for row in records}
    if all(kept.values()):
        return {node: offset for node, offset in kept.items() if offset}
    bound = {row.node: _by_controller(job, row) for row in records}
    return {node: offset for node, offset in bound.items() if offset}


def _by_chrony(record: Mapping[str, Any]) -> Offset | None:
    """Taken as an error alone: chronyd lets a clock drift towards the right time while the run goes on."""
    offset = record["clock"]["offset_s"]
    return None if offset is None else Offset(0.0, abs(offset))


def _by_controller(job: Job, row: RecordRow) -> Offset | None:
    """None too where the moments contradict each other: the clock was set while the run went on."""
    latest = _after_start(job, row.record)
    earliest = row.record["written"] - row.received
    if latest is None or latest < earliest:
        return None
    return Offset((earliest + latest) / 2, (latest - earliest) / 2)


def _after_start(job: Job, record: Mapping[str, Any]) -> float | None:
    """Prolog minus start, else epilog minus end: a node that left the run early had its epilog before the run's end."""
    if record["prolog"] is not None and job.start is not None:
        return float(record["prolog"]["time"] - job.start) + _WHOLE_S
    if record["epilog"] is not None and job.end is not None:
        return float(record["epilog"]["time"] - job.end) + _WHOLE_S
    return None
