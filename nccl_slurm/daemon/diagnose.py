"""One run from its stored parts to verdict, recommendation, report and the line for its comment."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.attribute.clocks import UNMEASURED_S
from nccl_slurm.attribute.live import Quiet, capped, judge, look_only
from nccl_slurm.attribute.placement import placed
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.attribute.steps import note, of_step
from nccl_slurm.daemon.clocks import Offset, offsets
from nccl_slurm.daemon.evidence import assemble, role_of, shows_nccl_or_torch
from nccl_slurm.daemon.health import failed_state
from nccl_slurm.daemon.readings import readings_of
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.rows import NodeEventRow, RecordRow
from nccl_slurm.hosts import fold
from nccl_slurm.model import Earlier, Evidence, Gap, Job, NodeView, Parsed, Recommendation, Verdict
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.site import Site
from nccl_slurm.report.build import build
from nccl_slurm.report.line import comment

__all__ = [
    "Diagnosis",
    "Parts",
    "collector_at_rest",
    "diagnose",
    "goes_on",
    "had_gpus",
    "judged",
    "node_views",
    "silent",
    "went_well",
]

#: A node that fails takes its job along: Slurm's own stamps of the two lie seconds apart (SlurmdTimeout is longer,
#: but the node's reason is stamped when slurmctld gives it up, and so is the job's end).
_FAIL_SLACK_S = 5.0


@dataclass(frozen=True)
class Parts:
    """What the store and Slurm hold of one run. ``events``: node edges up to now, oldest first.

    ``machines``, ``site``, ``policy``, ``now``: see `recommend`; None: no history, no guards but the role, the packaged
    decision table.
    """

    job: Job
    records: Sequence[RecordRow]
    events: Sequence[NodeEventRow]
    output: Parsed
    controllers: Sequence[str]
    gaps: Sequence[Gap] = ()
    earlier: Earlier | None = None
    machines: Mapping[str, Machine] | None = None
    site: Site | None = None
    policy: Policy | None = None
    now: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    evidence: Evidence
    report: Mapping[str, Any]
    comment: str | None

    had_gpus: bool = False
    recommendations: Sequence[Recommendation] = ()

    @property
    def of_interest(self) -> bool:
        return self.had_gpus or shows_nccl_or_torch(self.evidence)


def diagnose(parts: Parts, status: str, *, run_in_comment: int | None = None) -> Diagnosis:
    whole = evidence_of(parts)
    evidence, verdict = _of_step(whole, parts.job)
    shown = replace(evidence, job=parts.job, nodes=whole.nodes, facts=whole.facts)
    asked = recommend(verdict, evidence, machines=parts.machines, site=parts.site, policy=parts.policy, now=parts.now)
    if status == "live":  # of a job that runs: a look at most
        verdict, asked = capped(verdict), tuple(map(look_only, asked))
    report = build(shown, verdict, asked, status)
    return Diagnosis(shown, report, comment(report, run=run_in_comment), had_gpus(parts.records), asked)


def silent(parts: Parts, quiet: Quiet) -> Diagnosis:
    """Of a job that runs and shows nothing: nobody is asked for more than a look."""
    whole = evidence_of(parts)
    evidence, verdict = judge(placed(of_step(whole)), quiet)
    shown = replace(evidence, job=parts.job, nodes=whole.nodes)
    report = build(shown, verdict, (), "live")
    return Diagnosis(shown, report, comment(report), had_gpus(parts.records))


def goes_on(parts: Parts, silent_s: float) -> Diagnosis:
    """Takes a verdict of `silent` back. ``silent_s``: 0 where a daemon before this one gave it."""
    evidence = evidence_of(parts)
    text = f"The job was silent{f' for {silent_s:.0f} s' if silent_s else ''}, and goes on."
    report = build(of_step(evidence), Verdict("benign", "possible", text, "none"), (), "live")
    return Diagnosis(evidence, report, comment(report), had_gpus(parts.records))


def _of_step(whole: Evidence, job: Job) -> tuple[Evidence, Verdict]:
    evidence = of_step(whole)
    sorts = Sorts(evidence.facts)
    evidence = placed(evidence, sorts)
    return evidence, _with_step(attribute(evidence, sorts), job)


def _with_step(verdict: Verdict, job: Job) -> Verdict:
    told = note(job)
    return (
        verdict
        if told is None
        else replace(verdict, inferences=(*verdict.inferences[:1], told, *verdict.inferences[1:]))
    )


def judged(parts: Parts) -> tuple[Evidence, Verdict]:
    """Evidence and verdict, without a report."""
    return _of_step(evidence_of(parts), parts.job)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """A run of 16,384 ranks makes millions of objects without a cycle among them; walking them again and again for
    cycles costs a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def had_gpus(records: Sequence[RecordRow]) -> bool:
    """Slurm gives SLURM_JOB_GPUS to the hooks of a job with GPUs, also where accounting doesn't track them."""
    hooks = (row.record[hook] for row in records for hook in ("prolog", "epilog"))
    return any(hook["env"].get("SLURM_JOB_GPUS") for hook in hooks if hook)


def went_well(parts: Parts) -> Diagnosis:
    """A run that is recorded only: its report says that nothing was looked for."""
    evidence = evidence_of(parts)
    how = "ended as it should" if parts.job.state == "COMPLETED" else f"was {(parts.job.state or 'ended').lower()}"
    verdict = Verdict("benign", "proven", f"The job {how}; nothing was looked for.", "none")
    report = build(of_step(evidence), verdict, (), "final")
    return Diagnosis(evidence, report, comment(report))


def evidence_of(parts: Parts) -> Evidence:
    records = {row.node: row.record for row in parts.records}
    views = node_views(parts)
    missing = [Gap(f"node record of {view.name}", "none arrived") for view in views if view.record == "missing"]
    gaps = [*parts.gaps, *missing, *_unmeasured(views)]
    return replace(assemble(_with_gpus(parts), views, records, parts.output, gaps), earlier=parts.earlier)


def _with_gpus(parts: Parts) -> Job:
    """None are known only where all nodes' hooks tell of none, no snapshot shows one that Slurm does not know of, and
    the output was read: what was not may tell of ranks on them."""
    job, told = parts.job, {row.node for row in parts.records if row.record["prolog"] or row.record["epilog"]}
    shown = had_gpus(parts.records) or any(r.gpus for row in parts.records for r in readings_of(row.record, None))
    unread = not parts.output.bytes_read and any(gap.source == "job output" for gap in parts.output.gaps)
    if job.gpus:
        return job
    return replace(job, gpus=None if shown or unread or not told.issuperset(job.nodes) else 0)


def _unmeasured(views: Sequence[NodeView]) -> list[Gap]:
    names = [view.name for view in views if view.record != "missing" and view.clock_error_s is None]
    if not names or len(views) < 2:
        return []
    why = f"not measured: its times and other nodes' have an order only where they are {2 * UNMEASURED_S:.0f} s apart"
    return [Gap(f"clock of {fold(names)}", why)]


def node_views(parts: Parts) -> list[NodeView]:
    rows = {row.node: row for row in parts.records}
    clocks = offsets(parts.job, parts.records)
    return [_view(name, rows.get(name), parts, clocks.get(name)) for name in parts.job.nodes]


def _view(name: str, row: RecordRow | None, parts: Parts, clock: Offset | None) -> NodeView:
    mine = [event for event in parts.events if event.node == name]
    end = parts.job.end if parts.job.end is not None else float("inf")
    at_start = _last(mine, parts.job.start or 0.0)
    at_end = _last(mine, end + _FAIL_SLACK_S)
    inside = [e for e in mine if (parts.job.start or 0.0) < e.time <= end + _FAIL_SLACK_S]
    return NodeView(
        name=name,
        identity=row.record["machine"]["identity"] if row else None,
        role=role_of(name, row.record if row else None, parts.controllers),
        state_at_start=at_start.state if at_start else None,
        state_at_end=at_end.state if at_end else None,
        reason=at_end.reason if at_end else None,
        record=("late" if row.late else "present") if row else "missing",
        failed_in_run=any(failed_state(event.state) for event in inside),
        clock_offset_s=clock.seconds if clock else None,
        clock_error_s=clock.error_s if clock else None,
    )


def _last(events: Sequence[NodeEventRow], until: float) -> NodeEventRow | None:
    return next((event for event in reversed(events) if event.time <= until), None)
