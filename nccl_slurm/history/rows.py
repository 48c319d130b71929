"""What the store gives back: one small frozen class a table. Times are seconds since 1970 UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.model import Job, Step, alike

__all__ = [
    "ACTIVE",
    "AuditRow",
    "CommentRow",
    "Generation",
    "MachineRow",
    "NodeEventRow",
    "NodeSeen",
    "Note",
    "PathsRow",
    "RecommendationRow",
    "RecordRow",
    "ReportRow",
    "RunRow",
]

#: States of a recommendation that still wants something: from a person, or from the machine.
ACTIVE = ("open", "snoozed", "accepted")


@dataclass(frozen=True)
class RunRow:
    """One run of one job: all that was known of it, live and from accounting.

    ``status``: pending | settling | live | final, as in the report; a run is *open* until it is final.
    ``disposition``: diagnose | record | ignore, None while it runs. ``comment`` is the user's own, as last seen live.
    ``log_paths`` are folders and files that the batch script names; ``live_reason`` is slurmctld's, which accounting
    does not keep.
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
    status: str = "pending"
    disposition: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    workdir: str | None = None
    log_paths: Sequence[str] = ()
    comment: str | None = None
    live_reason: str | None = None

    def with_live(self, live: RunRow) -> RunRow:
        """This run with what slurmctld says now; what accounting said, status and disposition stay."""
        return replace(
            self,
            nodes=live.nodes,
            stdout=live.stdout or self.stdout,
            stderr=live.stderr or self.stderr,
            workdir=live.workdir or self.workdir,
            log_paths=live.log_paths or self.log_paths,
            comment=self.comment if live.comment is None else live.comment,
            live_reason=live.live_reason or self.live_reason,
            gpus=self.gpus if live.gpus is None else live.gpus,
        )

    def as_job(self) -> Job:
        return alike(Job, self, reason=self.live_reason)


@dataclass(frozen=True)
class RecordRow:
    """One node's record of one run (schema ``node-record/1``). ``late``: it came after the run was final."""

    cluster: str
    raw_id: int
    run: int
    node: str
    received: float
    sha256: str
    late: bool
    record: Mapping[str, Any]


@dataclass(frozen=True)
class NodeEventRow:
    """One edge: from ``time`` on the node is in ``state`` (base and flags joined by ``+``).

    ``identity`` is the machine's, where the source knows it. ``source``: poll | slurmdbd | record.
    """

    node: str
    time: float
    state: str
    reason: str | None = None
    reason_by: str | None = None
    source: str = "poll"
    identity: str | None = None


@dataclass(frozen=True)
class MachineRow:
    """What is known of one machine beside its events.

    ``source``: where its identity comes from, as in the node record; ``node-name`` where no node record told one.
    ``shared``: two live nodes claimed this identity. ``boot_time`` and ``slurmd_start`` as Slurm or the node told them
    last, ``boot_id`` and ``seen`` by the newest node record. None is not observed. ``since``: when it got the node name
    that it has now, where that was asked for.
    """

    number: int
    identity: str
    source: str
    shared: bool = False
    role: str = "unknown"
    boot_id: str | None = None
    boot_time: float | None = None
    slurmd_start: float | None = None
    seen: float | None = None
    since: float | None = None


@dataclass(frozen=True)
class Generation:
    """The machine ``identity`` had the name ``node`` from ``since`` until ``until`` (None: it has it now)."""

    node: str
    identity: str
    since: float
    until: float | None = None


@dataclass(frozen=True)
class ReportRow:
    """``revision`` counts from 1 for each run; a late record makes a new one."""

    cluster: str
    raw_id: int
    run: int
    revision: int
    at: float
    report: Mapping[str, Any]


@dataclass(frozen=True)
class PathsRow:
    """A run by its job's id and number, and machine identity → what is compared → values (``info.path``)."""

    id: str
    run: int
    ways: Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class CommentRow:
    """The text that one run's job is to carry. ``state``: queued | written | verified | given-up.

    ``field`` is where it was written last. ``id`` and ``end`` are those of the run.
    """

    cluster: str
    raw_id: int
    run: int
    id: str
    end: float | None
    text: str
    field: str
    state: str
    tries: int
    next_try: float
    why: str


@dataclass(frozen=True)
class NodeSeen:
    """A node by its runs: ``diagnosed`` of its ``runs`` ended badly; the last one ended (or began) at ``last``."""

    node: str
    runs: int
    diagnosed: int
    last: float | None


@dataclass(frozen=True)
class Note:
    """Something for ``nccl-slurm status``, such as a quarantined file; ``count`` times, last at ``at``."""

    kind: str
    text: str
    at: float
    count: int


@dataclass(frozen=True)
class RecommendationRow:
    """What one machine wants, until a person or new evidence ends it: at most one of a machine is `ACTIVE`.

    ``state``: open | snoozed (until ``until``) | accepted, and declined | superseded |
    withdrawn | expired | done. ``number`` is None until it is stored. ``by``, ``decided`` and ``note`` are the
    person's. ``cluster``, ``raw_id``, ``run`` and ``job`` are the run whose verdict it rests on, ``evidence`` holds ids
    of facts in its report.
    """

    identity: str
    node: str
    action: str
    rule: str
    step: int
    why: str
    evidence: Sequence[str]
    commands: Sequence[str]
    failure_class: str
    cluster: str
    raw_id: int
    run: int
    job: str
    opened: float
    changed: float
    expires: float
    state: str = "open"
    until: float | None = None
    by: str | None = None
    decided: float | None = None
    note: str = ""
    number: int | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.cluster, self.raw_id, self.run)


@dataclass(frozen=True)
class AuditRow:
    """Who did what to which recommendation. ``who`` is the login of the real user, ``sudo_user`` what sudo said, where
    the real user is root; the daemon is ``who`` itself for what it opens, supersedes, withdraws and lets expire."""

    at: float
    who: str
    uid: int | None
    sudo_user: str | None
    host: str
    what: str
    recommendation: int | None
    node: str
    text: str = ""
