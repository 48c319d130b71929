"""What nccl-slurm asks of Slurm, and the nouns of the answers. Backends: `cli_client` (commands), `pyslurm_client`
(pyslurm first, where it is installed), `fake` (tests).

All times are seconds since 1970 UTC; None is *not told*. Text that users set (job name, comment, paths) is hostile and
comes as it is. Comments and paths keep bytes that are not UTF-8 as surrogate escapes, so that they can be written and
opened again; `history.store` replaces those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nccl_slurm.model import Step

__all__ = [
    "FINAL_STATES",
    "USER_ID",
    "Accounted",
    "CommentField",
    "CommentState",
    "Controller",
    "LiveJob",
    "NodeEvent",
    "NodeState",
    "SchedulerClient",
    "Settings",
]

#: Base states in which a record of a job changes no more (man sacct, JOB STATE CODES). ``RESIZING`` closes a record
#: of a job that lost a node under --no-kill; ``REQUEUED`` and ``PREEMPTED`` may be followed by a newer record.
FINAL_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REQUEUED",
        "RESIZING",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    }
)

#: A job id as users type it: ``42``, ``42_1`` (array task), ``43+1`` (component of a heterogeneous job).
USER_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?", re.ASCII)

CommentField = Literal["comment", "admincomment"]


@dataclass(frozen=True)
class NodeState:
    """``state`` is the base (``IDLE``), ``flags`` what Slurm adds to it (``DRAIN``, ``NOT_RESPONDING`` …).

    ``boot_time`` wobbles by a second without a reboot and is None for seconds after a resume. ``gpus``: how many
    slurm.conf has for the node; None where they may be parts of GPUs (MIG). ``hostname``, ``address``: slurm.conf's
    NodeHostname and NodeAddr, by default the name.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    reason_by: str | None = None
    reason_at: float | None = None
    boot_time: float | None = None
    slurmd_start: float | None = None
    version: str | None = None
    gpus: int | None = None
    hostname: str | None = None
    address: str | None = None  # NodeAddr: what Slurm itself connects to

    @property
    def full_state(self) -> str:
        """``DOWN+DRAIN+NOT_RESPONDING``: base first, flags by name."""
        return "+".join([self.state, *sorted(self.flags)])

    @property
    def failed(self) -> bool:
        """Slurm itself says that this node is no good now. DRAIN alone is an administrator's plan, NOT_RESPONDING alone
        a slurmd that is being restarted."""
        return self.state in ("DOWN", "FAIL", "ERROR") or "FAIL" in self.flags


@dataclass(frozen=True)
class NodeEvent:
    """One row of slurmdbd's node events. ``end`` None: still open. ``state`` may be a flag by itself (``DRAIN``).

    A node that is drained while a job runs gets its row only when the job ended, and without the user who did it.
    """

    node: str
    start: float
    end: float | None
    state: str
    flags: frozenset[str] = frozenset()
    user: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class LiveJob:
    """A job that slurmctld knows: pending, running, or ended less than MinJobAge ago.

    ``state`` is COMPLETING while epilogs run, whatever the end was. ``stdout`` and ``stderr`` are the paths that the
    batch host opened, with Slurm's patterns replaced; None for jobs without a batch script. ``end`` is None unless the
    state is final.
    """

    raw_id: int
    id: str
    name: str
    state: str
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    user: str | None = None
    uid: int | None = None
    partition: str | None = None
    reason: str | None = None
    node_list: str = ""
    nodes: Sequence[str] = ()
    batch_host: str | None = None
    batch: bool = False
    stdout: str | None = None
    stderr: str | None = None
    workdir: str | None = None
    comment: str = ""
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    restarts: int | None = None
    exit: str | None = None
    derived_exit: str | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Accounted:
    """One record of accounting. A requeued job has several under one ``raw_id``, told apart by ``start``.

    ``record`` is slurmdbd's own number of the record. ``end`` None: it runs, or its end is still queued for slurmdbd.
    """

    raw_id: int
    id: str
    cluster: str
    state: str
    record: int | None = None
    cancelled_by: str | None = None  # a uid
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    exit: str | None = None
    derived_exit: str | None = None
    node_list: str = ""
    nodes: Sequence[str] = ()
    user: str | None = None
    uid: int | None = None
    partition: str | None = None
    name: str | None = None
    gpus: int | None = None
    failed_node: str | None = None  # Slurm 24 and later
    restarts: int | None = None  # Slurm 24 and later
    reason: str | None = None  # "None" for nearly all ended jobs: only slurmctld knows it
    steps: Sequence[Step] = ()

    @property
    def final(self) -> bool:
        return self.end is not None and self.state in FINAL_STATES


@dataclass(frozen=True)
class CommentState:
    """Both comments of the newest record of a job in accounting: the one that a write by id would hit.

    ``ran`` is false where it never had a node: cancelled while it was pending.
    """

    raw_id: int
    id: str
    state: str
    submit: float | None = None
    end: float | None = None
    comment: str = ""
    admin_comment: str = ""
    ran: bool = True

    @property
    def final(self) -> bool:
        return self.end is not None and self.state in FINAL_STATES


@dataclass(frozen=True)
class Controller:
    """``role`` is ``primary`` or ``backup`` as configured. ``up``: it answers; it need not be in charge."""

    host: str
    role: str
    up: bool


@dataclass(frozen=True)
class Settings:
    """The part of Slurm's configuration that shapes what can be asked. ``version`` is the controller's."""

    cluster: str
    version: tuple[int, int] | None = None
    accounting: bool = False  # slurmdbd: ended jobs can be asked for and their comments written
    stores_comments: bool = False  # AccountingStoreFlags=job_comment
    tracks_gpus: bool = False  # AccountingStorageTRES names gres/gpu; where not, GPUs of a job are not told
    slurm_user: str | None = None
    slurm_uid: int | None = None
    database_hosts: tuple[str, ...] = ()  # of slurmdbd, by slurm.conf
    min_job_age_s: float = 300.0  # so long after its end slurmctld still knows a job
    reboots: bool | None = None  # whether it has a RebootProgram, without which it refuses scontrol reboot
    started: float | None = None  # when the slurmctld that answers began to work


class SchedulerClient(Protocol):
    """All methods raise `SlurmUnreachable` (ask again later) or `SlurmRefused` (Slurm said no); nothing else."""

    @property
    def backend(self) -> str:
        """``commands``, or ``pyslurm`` while that answers first. Asks nobody."""

    def settings(self) -> Settings:
        """Asked each time; cheap (about 0.1 s)."""

    def controllers(self) -> Sequence[Controller]: ...

    def database_hosts(self) -> Sequence[str]:
        """Of slurmdbd and of the database behind it, backups too, as slurm.conf and slurmdbd.conf name them."""

    def switches(self) -> Mapping[str, str]:
        """Node → leaf switch; empty where Slurm has no tree of switches."""

    def version(self) -> tuple[int, int]:
        """Of the commands on this host: (22, 5)."""

    def lower_cases_text(self) -> bool:
        """sacctmgr before 23.02 stores every text in lower case."""

    def nodes(self) -> Sequence[NodeState]:
        """All nodes, one call."""

    def node_events(self, since: float, until: float | None = None) -> Sequence[NodeEvent]:
        """Rows of slurmdbd that touch the window, oldest first."""

    def jobs(self) -> Sequence[LiveJob]:
        """All jobs that slurmctld knows, one call. Pending array tasks are one entry with an id like ``42_[1-9]``."""

    def excluded(self) -> Mapping[int, Sequence[str]]:
        """Job → the nodes that it does not want (``--exclude``), of those that wait or run and name any."""

    def accounting(
        self, raw_ids: Sequence[int] = (), *, since: float | None = None, until: float | None = None
    ) -> Sequence[Accounted]:
        """All records of these jobs, or of all jobs that were there in the window; requeued runs included.

        Neither: nothing. In the order of accounting: runs of one job by their age. A job that began less than 5 s ago
        may be absent: slurmdbd has made up a record of its own until slurmctld tells it of the job (see `jobtext`).
        """

    def comments(self, raw_ids: Sequence[int]) -> Mapping[int, CommentState]:
        """Of the newest record of each job; jobs that accounting does not know are absent."""

    def write_live_comment(self, job_id: str, text: str) -> None:
        """Comment of a job that has not ended; ``job_id`` as users type it. At most 1,024 bytes; empty clears.

        `SlurmRefused` once the job ended, even while it is COMPLETING.
        """

    def write_accounted_comment(
        self, job_ids: Sequence[str], text: str, field: CommentField = "comment"
    ) -> frozenset[int]:
        """One text on the newest record of each job, ids as users type them, in one call.

        Returns the raw ids of the jobs whose record was changed. Those that are missing are not known to slurmdbd yet
        (or hold this text, from 26.05 on): ask `comments`, try again. ``42`` of an array and ``43`` of a heterogeneous
        job hit all their parts: give ``42_1`` and ``43+0``. A job that still runs loses the text at its end.
        """

    def batch_script(self, job_id: str) -> str | None:
        """None where slurmctld has none: no batch job, or purged (MinJobAge)."""
