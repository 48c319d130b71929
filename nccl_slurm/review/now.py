"""A recommendation as things are now: whom its command hits, and what speaks against running it. Pure.

A recommendation may be days old. What its verdict knew of node and cluster is asked again whenever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_slurm.clock import rfc3339
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.reasons import Reasons
from nccl_slurm.history.rows import NodeEventRow, RecommendationRow, RunRow
from nccl_slurm.recommend.guard import in_progress, others_reason
from nccl_slurm.recommend.site import NodeNow, Running
from nccl_slurm.recommend.step import HEAVY
from nccl_slurm.review.outcome import outcome

__all__ = ["Now", "as_it_is", "runs_there"]

_JOBS_SHOWN = 5
_NEVER = {
    "controller": "it is a Slurm controller now: plan a fail-over first",
    "database": "slurmdbd or its database runs on it now: plan a fail-over first",
    "login": "it is a login node now: tell the users who work there first",
}


@dataclass(frozen=True)
class Now:
    """``state`` and ``reason`` as they were polled last, None: not observed. ``seen``: when the daemon was alive last.
    ``others``: the reason is another's, and the command writes over it. ``held``: why the command is not to be run now.
    """

    state: str | None
    reason: str | None
    reason_by: str | None
    others: bool
    jobs: Sequence[Running]
    seen: float | None
    held: str | None

    def lines(self) -> list[str]:
        by = f", set by {self.reason_by}" if self.reason_by else ""
        over = ", which the command replaces" if self.others else ""
        reason = f", reason '{self.reason}'{by}{over}" if self.reason else ""
        alive = [_jobs(self.jobs), f"as polled until {rfc3339(self.seen)}"] if self.seen is not None else []
        told = [f"{self.state or 'not observed'}{reason}", *alive]
        return [*told, *([f"nothing is to be run now: {self.held}"] if self.held else [])]


def as_it_is(
    row: RecommendationRow,
    machine: Machine | None,
    edge: NodeEventRow | None,
    jobs: Sequence[Running],
    seen: float | None,
    reasons: Reasons,
) -> Now:
    """``edge``: the node's newest; ``reasons``: the store's."""
    node = NodeNow(edge.state, edge.reason) if edge else NodeNow()
    heavy = row.action in HEAVY
    return Now(
        state=node.state,
        reason=node.reason,
        reason_by=edge.reason_by if edge else None,
        others=heavy and others_reason(node) is not None,
        jobs=jobs,
        seen=seen,
        held=_held(row, node, machine, reasons) if heavy else None,
    )


def _held(row: RecommendationRow, node: NodeNow, machine: Machine | None, reasons: Reasons) -> str | None:
    what = in_progress(node, reasons)
    if what is not None:
        return f"recovery is in progress ({what[:120]})"
    came = outcome(row, machine)
    if came is not None and came.carried_out is not None:
        return f"it was carried out {rfc3339(came.carried_out)}"
    return _NEVER.get(machine.role) if machine is not None else None


def runs_there(runs: Iterable[RunRow]) -> list[Running]:
    """Of a node's runs those that have it now."""
    there = (run for run in runs if run.start is not None and run.end is None and run.state != "PENDING")
    return [Running(run.id, run.user, len(run.nodes)) for run in there]


def _jobs(jobs: Sequence[Running]) -> str:
    shown = [f"{job.job} of {job.user or 'somebody'} ({job.nodes or '?'} nodes)" for job in jobs[:_JOBS_SHOWN]]
    more = f" and {len(jobs) - _JOBS_SHOWN} more" if len(jobs) > _JOBS_SHOWN else ""
    return f"runs there: {', '.join(shown)}{more}" if shown else "no job runs there"
