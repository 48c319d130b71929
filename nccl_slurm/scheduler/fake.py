"""A small Slurm in memory for tests of code that uses `SchedulerClient`. It keeps Slurm's traps:

* a comment can't be set by slurmctld once the job has ended, even while its end is queued for slurmdbd;
* the end record writes slurmctld's comment over what sacctmgr wrote before;
* sacctmgr stores quotes as backticks, lower case before 23.02, and ``42`` hits all tasks of array 42;
* a requeued job leaves a record behind that no id reaches any more.

``away`` names the daemons that don't answer (``slurmctld``, ``slurmdbd``); ``held`` keeps end records queued until
`flush`; ``calls`` lists the methods that were called with a comment or a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.clock import Clock, MovableClock
from nccl_slurm.errors import SlurmRefused, SlurmUnreachable
from nccl_slurm.hosts import expand
from nccl_slurm.model import Step, alike
from nccl_slurm.scheduler.client import (
    FINAL_STATES,
    USER_ID,
    Accounted,
    CommentField,
    CommentState,
    Controller,
    LiveJob,
    NodeEvent,
    NodeState,
    Settings,
)
from nccl_slurm.scheduler.text import split_state

__all__ = ["FakeSlurm"]


@dataclass
class _Record:
    """One record of accounting with its comments."""

    job: Accounted
    comment: str = ""
    admin_comment: str = ""


class FakeSlurm:
    """Jobs start when they are submitted. Node and job names are taken as given."""

    backend = "commands"

    def __init__(
        self,
        nodes: str = "n[1-4]",
        *,
        cluster: str = "fake",
        version: tuple[int, int] = (24, 11),
        accounting: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.cluster = cluster
        self.away: set[str] = set()
        self.held = False
        self.calls: list[tuple[Any, ...]] = []
        self.controller_list = (Controller("ctl", "primary", True),)
        self.database_list: tuple[str, ...] = ()
        self.switch_of: dict[str, str] = {}
        self._release = version
        self._has_accounting = accounting
        self._clock = clock or MovableClock(1_000_000_000.0)
        self._started = self._clock.now()
        self._nodes = {name: NodeState(name, "IDLE", boot_time=self._clock.now()) for name in expand(nodes)}
        self._events: list[NodeEvent] = []
        self._live: dict[int, LiveJob] = {}
        self._records: list[_Record] = []
        self._queued: list[tuple[_Record, Accounted, str]] = []
        self._scripts: dict[int, str] = {}
        self._excluded: dict[int, tuple[str, ...]] = {}
        self._next = 1

    # -- what a test makes happen -------------------------------------------------------------------------------

    def submit(
        self,
        nodes: str = "n1",
        *,
        array: tuple[int, int] | None = None,
        het: tuple[int, int] | None = None,
        script: str | None = None,
        exclude: str = "",
        **fields: Any,
    ) -> int:
        """Submit and start; the raw id. ``array`` is (array job id, task), ``het`` (leader's id, offset); ``fields``
        are those of `LiveJob`."""
        raw_id = self._next
        self._next += 1
        shown = f"{array[0]}_{array[1]}" if array else f"{het[0]}+{het[1]}" if het else str(raw_id)
        job = LiveJob(
            raw_id=raw_id,
            id=shown,
            state="RUNNING",
            array_job_id=array[0] if array else None,
            array_task_id=array[1] if array else None,
            het_job_id=het[0] if het else None,
            het_offset=het[1] if het else None,
            node_list=nodes,
            nodes=tuple(expand(nodes)),
            batch=script is not None,
            submit=self._clock.now(),
            start=self._clock.now(),
            restarts=0,
            **{"name": "job", "user": "alice", "uid": 1000, "partition": "main", **fields},
        )
        if script is not None:
            self._scripts[raw_id] = script
        if exclude:
            self._excluded[raw_id] = tuple(expand(exclude))
        self._live[raw_id] = job
        self._add_record(job)
        return raw_id

    def end(
        self,
        raw_id: int,
        state: str = "COMPLETED",
        *,
        exit: str = "0:0",
        derived_exit: str = "0:0",
        steps: Sequence[Step] = (),
        **fields: Any,
    ) -> None:
        """``fields`` are those of `Accounted` (``cancelled_by``, ``failed_node`` …)."""
        job = self._live[raw_id]
        now = self._clock.now()
        self._live[raw_id] = replace(job, state=state, end=now, exit=exit, derived_exit=derived_exit)
        record = self._newest(raw_id)
        ended = replace(
            record.job, state=state, end=now, exit=exit, derived_exit=derived_exit, steps=tuple(steps), **fields
        )
        self._queued.append((record, ended, job.comment))
        if not self.held:
            self.flush()

    def requeue(self, raw_id: int, state: str = "REQUEUED", **fields: Any) -> None:
        """End this run (``NODE_FAIL``, ``PREEMPTED`` …) and let the job wait for the next one: see `restart`."""
        before = self._live[raw_id]
        self.end(raw_id, state, **fields)
        waiting = replace(before, state="PENDING", submit=self._clock.now(), start=None, node_list="", nodes=())
        self._live[raw_id] = replace(waiting, reason="BeginTime", restarts=(before.restarts or 0) + 1)
        self._add_record(self._live[raw_id])

    def restart(self, raw_id: int, nodes: str = "n1") -> None:
        job = replace(self._live[raw_id], state="RUNNING", start=self._clock.now(), reason=None)
        self._live[raw_id] = replace(job, node_list=nodes, nodes=tuple(expand(nodes)))
        record = self._newest(raw_id)
        record.job = replace(alike(Accounted, self._live[raw_id], cluster=self.cluster), record=record.job.record)

    def change(self, raw_id: int, **fields: Any) -> None:
        """Any field of a live job, such as ``state="COMPLETING"``."""
        self._live[raw_id] = replace(self._live[raw_id], **fields)

    def purge(self, raw_id: int) -> None:
        """slurmctld forgets the job (MinJobAge); accounting keeps it."""
        del self._live[raw_id]
        self._scripts.pop(raw_id, None)

    def start_again(self) -> None:
        """slurmctld was stopped, or its backup takes over."""
        self._started = self._clock.now()

    def flush(self) -> None:
        """slurmdbd takes the queued end records."""
        for record, ended, comment in self._queued:
            record.job, record.comment = ended, comment
        self._queued.clear()

    def set_node(self, name: str, state: str, reason: str | None = None, by: str = "root") -> None:
        """``state`` as Slurm prints it: ``DOWN*+DRAIN``. Closes the node's open event, opens one unless it is well."""
        now = self._clock.now()
        base, flags = split_state(state)
        at = now if reason else None
        self._nodes[name] = replace(
            self._nodes[name],
            state=base,
            flags=flags,
            reason=reason,
            reason_by=by if reason else None,
            reason_at=at,
        )
        self._events = [replace(e, end=now) if e.node == name and e.end is None else e for e in self._events]
        if self._nodes[name].failed or "DRAIN" in flags:
            self._events.append(NodeEvent(name, now, None, base, flags, f"{by}(0)", reason))

    def reboot(self, name: str) -> None:
        self._nodes[name] = replace(self._nodes[name], boot_time=self._clock.now())

    # -- what code under test asks ------------------------------------------------------------------------------

    def settings(self) -> Settings:
        self._need("slurmctld")
        has = self._has_accounting
        return Settings(self.cluster, self._release, has, has, True, "slurm", 64030, started=self._started)

    def controllers(self) -> tuple[Controller, ...]:
        return self.controller_list

    def database_hosts(self) -> tuple[str, ...]:
        self._need("slurmdbd")
        return self.database_list

    def switches(self) -> dict[str, str]:
        self._need("slurmctld")
        return self.switch_of

    def version(self) -> tuple[int, int]:
        return self._release

    def lower_cases_text(self) -> bool:
        return self._release < (23, 2)

    def nodes(self) -> tuple[NodeState, ...]:
        self._need("slurmctld")
        return tuple(self._nodes.values())

    def node_events(self, since: float, until: float | None = None) -> tuple[NodeEvent, ...]:
        self._need("slurmdbd")
        found = [e for e in self._events if (e.end is None or e.end >= since) and (until is None or e.start <= until)]
        return tuple(sorted(found, key=lambda event: event.start))

    def jobs(self) -> tuple[LiveJob, ...]:
        self._need("slurmctld")
        return tuple(self._live.values())

    def excluded(self) -> dict[int, tuple[str, ...]]:
        self._need("slurmctld")
        return {job: nodes for job, nodes in self._excluded.items() if self._live[job].end is None}

    def accounting(
        self, raw_ids: Sequence[int] = (), *, since: float | None = None, until: float | None = None
    ) -> tuple[Accounted, ...]:
        self.calls.append(("accounting", tuple(raw_ids), since, until))
        self._need("slurmdbd")
        if not raw_ids and since is None:
            return ()
        jobs = (record.job for record in self._records)
        return tuple(job for job in jobs if (job.raw_id in raw_ids if raw_ids else _touches(job, since or 0.0, until)))

    def comments(self, raw_ids: Sequence[int]) -> dict[int, CommentState]:
        self.calls.append(("comments", tuple(raw_ids)))
        self._need("slurmdbd")
        known = {record.job.raw_id for record in self._records}
        return {raw_id: _comment_state(self._newest(raw_id)) for raw_id in raw_ids if raw_id in known}

    def write_live_comment(self, job_id: str, text: str) -> None:
        self.calls.append(("write_live_comment", job_id, text))
        self._need("slurmctld")
        hit = [job for job in self._live.values() if _names(_checked(job_id), job.id, job.raw_id)]
        if not hit:
            raise SlurmRefused("scontrol update: Invalid job id specified")
        if all(job.state in FINAL_STATES or job.state == "COMPLETING" for job in hit):
            raise SlurmRefused(f"scontrol update: Job has already finished for job {job_id}")
        if len(text.encode("utf-8", "surrogateescape")) > 1024:
            raise SlurmRefused("scontrol update: Pathname of a file, directory or other parameter too long")
        for job in hit:
            self._live[job.raw_id] = replace(job, comment=text)

    def write_accounted_comment(
        self, job_ids: Sequence[str], text: str, field: CommentField = "comment"
    ) -> frozenset[int]:
        self.calls.append(("write_accounted_comment", tuple(job_ids), text, field))
        self._need("slurmdbd")
        stored = text.replace('"', "`").replace("'", "`")
        stored = stored.lower() if self.lower_cases_text() else stored
        ids = [_checked(job_id) for job_id in job_ids]
        known = {record.job.raw_id: record.job.id for record in self._records}
        hit = {raw_id for raw_id, shown in known.items() if any(_names(job_id, shown, raw_id) for job_id in ids)}
        for raw_id in hit:
            setattr(self._newest(raw_id), "comment" if field == "comment" else "admin_comment", stored)
        return frozenset(hit)

    def batch_script(self, job_id: str) -> str | None:
        self._need("slurmctld")
        hit = [job.raw_id for job in self._live.values() if _names(_checked(job_id), job.id, job.raw_id)]
        return self._scripts.get(hit[0]) if hit else None

    def _add_record(self, job: LiveJob) -> None:
        number = len(self._records) + 1
        self._records.append(
            _Record(
                replace(
                    alike(Accounted, job, cluster=self.cluster, end=None, exit=None, derived_exit=None, reason=None),
                    record=number,
                )
            )
        )

    def _newest(self, raw_id: int) -> _Record:
        return next(record for record in reversed(self._records) if record.job.raw_id == raw_id)

    def _need(self, daemon: str) -> None:
        if daemon in self.away:
            raise SlurmUnreachable(f"{daemon}: Connection refused")
        if daemon == "slurmdbd" and not self._has_accounting:
            raise SlurmRefused("You are not running a supported accounting_storage plugin")


def _comment_state(record: _Record) -> CommentState:
    job = record.job
    comments = (record.comment, record.admin_comment)
    return CommentState(job.raw_id, job.id, job.state, job.submit, job.end, *comments, ran=bool(job.nodes))


def _touches(job: Accounted, since: float, until: float | None) -> bool:
    return (job.end is None or job.end >= since) and (until is None or (job.submit or 0.0) <= until)


def _checked(job_id: str) -> str:
    if not USER_ID.fullmatch(job_id):
        raise SlurmRefused(f"{job_id[:40]!r} is no job id")
    return job_id


def _names(job_id: str, shown: str, raw_id: int) -> bool:
    """Whether ``job_id`` means this job; the id of an array or of a heterogeneous job means all its parts."""
    return job_id in (shown, str(raw_id), shown.partition("_")[0], shown.partition("+")[0])
