"""What the store gives back: small frozen rows. Times are seconds since 1970 UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.model import Job, Step
from nccl_slurm.scheduler.client import Accounted

__all__ = ["CommentRow", "NodeEventRow", "NoteRow", "RecordRow", "ReportRow", "RunRow"]


@dataclass(frozen=True)
class RunRow:
    """One run of one job; key: (cluster, raw_id, run).

    ``status``: open (runs), settling (ended, waits for records), final. ``disposition``: open, diagnose, record, ignore
    (docs/jobs.md) with ``why``. ``log_paths``: where the batch script says that its steps write; ``*`` stands for what
    differs by rank or node. ``live_reason`` is slurmctld's Reason, which accounting forgets.
    """

    cluster: str
    raw_id: int
    run: int
    id: str
    user: str | None = None
    uid: int | None = None
    name: str | None = None
    partition: str | None = None
    state: str | None = None
    exit: str | None = None
    derived_exit: str | None = None
    nodes: Sequence[str] = ()
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    gpus: int | None = None
    failed_node: str | None = None
    cancelled_by: str | None = None
    steps: Sequence[Step] = ()
    stdout: str | None = None
    stderr: str | None = None
    workdir: str | None = None
    log_paths: Sequence[str] = ()
    live_reason: str | None = None
    status: str = "open"
    disposition: str = "open"
    why: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.cluster, self.raw_id, self.run

    def job(self) -> Job:
        return Job(
            id=self.id,
            raw_id=self.raw_id,
            cluster=self.cluster,
            run=self.run,
            user=self.user,
            uid=self.uid,
            name=self.name,
            partition=self.partition,
            state=self.state,
            exit=self.exit,
            derived_exit=self.derived_exit,
            nodes=self.nodes,
            submit=self.submit,
            start=self.start,
            end=self.end,
            steps=self.steps,
            gpus=self.gpus,
            failed_node=self.failed_node,
            reason=self.live_reason,
            cancelled_by=self.cancelled_by,
        )

    def with_live(self, live: RunRow) -> RunRow:
        """What slurmctld alone tells, taken from ``live``; what is known already stays where ``live`` has nothing."""
        return replace(
            self,
            nodes=live.nodes,
            stdout=live.stdout or self.stdout,
            stderr=live.stderr or self.stderr,
            workdir=live.workdir or self.workdir,
            log_paths=live.log_paths or self.log_paths,
            live_reason=live.live_reason,
            gpus=self.gpus if live.gpus is None else live.gpus,
        )

    @classmethod
    def of_accounted(cls, record: Accounted, run: int, before: RunRow | None) -> RunRow:
        """Accounting's word, with what only slurmctld told kept from ``before``."""
        row = cls(
            cluster=record.cluster,
            raw_id=record.raw_id,
            run=run,
            id=record.id,
            user=record.user,
            uid=record.uid,
            name=record.name,
            partition=record.partition,
            state=record.state,
            exit=record.exit,
            derived_exit=record.derived_exit,
            nodes=tuple(record.nodes),
            submit=record.submit,
            start=record.start,
            end=record.end,
            gpus=record.gpus,
            failed_node=record.failed_node,
            cancelled_by=record.cancelled_by,
            steps=tuple(record.steps),
        )
        if before is None:
            return row
        nodes = tuple(dict.fromkeys([*before.nodes, *record.nodes]))
        return replace(row.with_live(before), nodes=nodes, status=before.status, disposition=before.disposition)


@dataclass(frozen=True)
class RecordRow:
    """A node record that was believed. ``late``: it came after the run was final."""

    node: str
    received: float
    sha256: str
    late: bool
    record: Mapping[str, Any]


@dataclass(frozen=True)
class NodeEventRow:
    """An edge of a node's state. ``state`` without its share of work: ``UP+DRAIN``, ``DOWN+NOT_RESPONDING``."""

    node: str
    time: float
    state: str
    reason: str | None = None
    reason_by: str | None = None
    source: str = "poll"
    identity: str | None = None


@dataclass(frozen=True)
class ReportRow:
    """``revision`` counts from 1; a late record makes a new one."""

    key: tuple[str, int, int]
    revision: int
    made: float
    report: Mapping[str, Any]


@dataclass(frozen=True)
class CommentRow:
    """The line for a run's comment on its way. ``state``: queued, written, verified, given-up."""

    cluster: str
    raw_id: int
    run: int
    id: str
    text: str
    end: float | None = None
    state: str = "queued"
    field: str = ""
    tries: int = 0
    why: str = ""


@dataclass(frozen=True)
class NoteRow:
    """Something for ``nccl-slurm status``: quarantined files, comments that could not be written, Slurm out of reach."""

    kind: str
    text: str
    first: float
    last: float
    count: int
