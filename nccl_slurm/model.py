"""The nouns of nccl-slurm, shared by all stages. Runs on Python 3.8 with the standard library alone (node code).

Times are seconds since 1970 UTC (float) in code and RFC 3339 UTC in reports. ``None`` always means *not observed*,
never zero, never healthy. ``trust`` says who could have written a fact: ``root`` (kernel, GPU query, Slurm, root's own
hooks) or ``job`` (anything that a job can print or write).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Iterable, Mapping, Sequence, TypeVar

__all__ = [
    "ACTIONS",
    "CLASSES",
    "DOCTOR_JOB",
    "READER_STEP",
    "Culprit",
    "Earlier",
    "Evidence",
    "Fact",
    "Gap",
    "Inference",
    "Job",
    "NodeView",
    "Parsed",
    "Rank",
    "Recommendation",
    "Step",
    "Verdict",
    "alike",
    "numbered",
]

#: Failure classes: what happened *first*, never what the ranks that waited printed afterwards.
CLASSES = (
    "collective-missing-rank",
    "collective-mismatch",
    "collective-hang-unattributed",
    "watchdog-stuck",
    "straggler",
    "rank-exception",
    "cuda-oom",
    "host-oom",
    "process-signal",
    "gpu-hw-ecc",
    "gpu-hw-lost",
    "nvlink-fabric",
    "gpu-app-fault",
    "net-ib-transport",
    "net-ib-setup",
    "net-socket-connect",
    "net-peer-lost",
    "net-efa-ofi",
    "version-mismatch",
    "resource-memlock",
    "resource-shm",
    "rendezvous-store",
    "slurm-node-fail",
    "slurm-launch",
    "preempt-cancel",
    "storage-stall",
    "benign",
    "benign-teardown",
    "unknown",
)

#: Next steps, in the words of the report and the comment.
ACTIONS = ("none", "fix-code", "fix-config", "investigate", "reboot", "replace", "network", "unknown")

#: Name of the steps by which we look at a job's nodes: no work of the job's own.
READER_STEP = "nccl-slurm-watch"
#: Job of the doctor on an idle node.
DOCTOR_JOB = "nccl-slurm-doctor"


@dataclass(frozen=True)
class Gap:
    """A source that was not observed, and why. A gap is never read as *healthy*."""

    source: str
    why: str


@dataclass(frozen=True, init=False)
class Fact:
    """One thing that one line (or one reading) says.

    ``kind`` is the id of the pattern row or the reading that made it (``torch.watchdog-timeout``, ``kernel.xid``).
    ``rank`` is the global rank or None; a rank inside a group and a local rank are in ``data`` and never here.
    ``data`` holds what the kind extracted: numbers and strings only.
    ``time`` is None where the line carries no clock; ``uncertainty_s`` is then None too.
    """

    kind: str
    text: str
    producer: str
    role: str  # cause | consequence | context | benign
    trust: str  # root | job
    hint: str | None = None  # failure class that this fact points at
    file: str | None = None
    line: int | None = None  # 1-based
    offset: int | None = None  # bytes from the start of the file
    rank: int | None = None
    host: str | None = None
    time: float | None = None
    uncertainty_s: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def __init__(
        self,
        kind: str,
        text: str,
        producer: str,
        role: str,
        trust: str,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
        offset: int | None = None,
        rank: int | None = None,
        host: str | None = None,
        time: float | None = None,
        uncertainty_s: float | None = None,
        data: Mapping[str, Any] | None = None,
        id: str = "",
    ) -> None:
        """By hand: what `dataclass` writes for a frozen class takes two or three times as long, 300,000 times a job."""
        made = {
            "kind": kind,
            "text": text,
            "producer": producer,
            "role": role,
            "trust": trust,
            "hint": hint,
            "file": file,
            "line": line,
            "offset": offset,
            "rank": rank,
            "host": host,
            "time": time,
            "uncertainty_s": uncertainty_s,
            "data": {} if data is None else data,
            "id": id,
        }
        object.__setattr__(self, "__dict__", made)

    def to_json(self) -> dict[str, Any]:
        """Lists in ``data`` stay the fact's own (`dataclasses.asdict` copies them, and takes ten times as long)."""
        return {**vars(self), "data": dict(self.data)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], **more: Any) -> Fact:
        """``value`` has passed the node-record schema; keys unknown to this version raise TypeError. ``more`` comes on
        top.

        A class that this version does not know (nodes may run a newer one) is no hint.
        """
        made = {**value, **more}
        if made.get("hint") is not None and made["hint"] not in CLASSES:
            made["hint"] = None
        if tuple(made) not in _WHOLE:
            if made.keys() != _OF_FACT:
                return cls(**made)
            if len(_WHOLE) < _ORDERS_MAX:
                _WHOLE.add(tuple(made))
        # what __init__ does, argument by argument, costs three times as much: there are 280,000 of 16,384 ranks
        fact = object.__new__(cls)
        object.__setattr__(fact, "__dict__", made)
        return fact


_OF_FACT = {known.name for known in fields(Fact)}
#: Orders of all its keys that came: one comparison in place of sixteen, and a writer has one order.
_WHOLE: set[tuple[str, ...]] = set()
_ORDERS_MAX = 64


@dataclass(frozen=True)
class Rank:
    """All that is known of one rank (global rank) of a job.

    ``exit`` follows Python's subprocess: ≥ 0 exit code, < 0 minus the signal number. ``progress`` maps a process
    group's shared name (GUID; ``0`` is the default group) to ``{"enqueued", "started", "completed"}`` sequence numbers,
    -1 for *nothing yet*. ``first`` and ``last`` are the first and last time stamps seen in this rank's own lines.
    """

    rank: int
    host: str | None = None
    local_rank: int | None = None
    gpu: str | None = None  # PCI bus id as in the kernel's Xid lines: 0000:a1:00
    pid: int | None = None
    exit: int | None = None
    first: float | None = None
    last: float | None = None
    uncertainty_s: float | None = None
    last_line: str | None = None
    progress: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    files: Sequence[str] = ()
    step: str | None = None  # number of Slurm's step, where a run had several

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rank:
        return cls(**value)


@dataclass(frozen=True)
class Parsed:
    """What was read from a set of sources (files of one node, or a folder given by hand)."""

    facts: Sequence[Fact] = ()
    ranks: Sequence[Rank] = ()
    gaps: Sequence[Gap] = ()
    world_size: int | None = None
    bytes_read: int = 0
    lines_unknown: int = 0  # lines that no row knows; of large files up to the last line of interest


@dataclass(frozen=True)
class Step:
    """One step of a job as accounting tells it. ``exit`` and ``signal`` are the two halves of sacct's ExitCode.

    ``start``, ``end``: whole seconds of slurmctld's; None in runs that were stored before these were kept.
    """

    id: str  # 42.0, 42.batch, 42.extern
    name: str
    state: str
    exit: int
    signal: int
    nodes: Sequence[str] = ()
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True)
class Job:
    """One run of one job: (cluster, raw id, run). ``id`` is what users type: ``42``, ``42_1``, ``43+1``.

    ``state`` is Slurm's base state in capitals without its trailer (``CANCELLED by 0`` → ``CANCELLED``).
    ``failed_node`` exists from Slurm 24 on. ``gpus`` is the number of GPUs allocated, None where TRES were not told.
    """

    id: str
    raw_id: int
    cluster: str
    run: int = 1
    user: str | None = None
    uid: int | None = None
    name: str | None = None
    partition: str | None = None
    state: str | None = None
    exit: str | None = None  # "1:0"
    derived_exit: str | None = None
    nodes: Sequence[str] = ()
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    steps: Sequence[Step] = ()
    gpus: int | None = None
    failed_node: str | None = None
    reason: str | None = None
    cancelled_by: str | None = None


@dataclass(frozen=True)
class NodeView:
    """One node of the run as Slurm and its own record show it."""

    name: str
    identity: str | None = None
    role: str = "unknown"  # compute | controller | unknown; unknown counts as controller
    state_at_start: str | None = None
    state_at_end: str | None = None
    reason: str | None = None
    record: str = "missing"  # present | late | missing
    failed_in_run: bool = False  # Slurm showed DOWN, FAIL or NOT_RESPONDING inside the run's window
    clock_offset_s: float | None = None  # ahead of what the run's clocks were measured against
    clock_error_s: float | None = None  # what that may be wrong by; None: the clock was not measured


@dataclass(frozen=True)
class Earlier:
    """An earlier run on the same machines. ``ways``: node, as this run calls it → what is compared → values."""

    job: str
    run: int
    ways: Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Evidence:
    """The input of attribution: everything known of one run. ``facts`` carry ids (see `numbered`).

    ``mixed``: names of the runs whose logs these are, where they could not be told apart; then nobody is proven.
    """

    job: Job | None = None
    nodes: Sequence[NodeView] = ()
    facts: Sequence[Fact] = ()
    ranks: Sequence[Rank] = ()
    gaps: Sequence[Gap] = ()
    world_size: int | None = None
    mixed: Sequence[str] = ()
    earlier: Earlier | None = None


@dataclass(frozen=True)
class Culprit:
    """A rank, a host, or both, that stalled or died first. ``evidence`` holds fact ids."""

    why: str
    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    evidence: Sequence[str] = ()


@dataclass(frozen=True)
class Inference:
    """One step of reasoning: ``rule`` names the rule, ``facts`` the fact ids it rests on."""

    text: str
    rule: str
    facts: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """``culprits`` only where proven; ``suspects`` never reach a comment. ``action`` speaks of the evidence alone."""

    failure_class: str
    confidence: str  # proven | likely | possible
    summary: str
    action: str
    culprits: Sequence[Culprit] = ()
    suspects: Sequence[Culprit] = ()
    inferences: Sequence[Inference] = ()

    @property
    def determinable(self) -> bool:
        return bool(self.culprits)


@dataclass(frozen=True)
class Recommendation:
    """What a person may do, after history and guards. ``target`` is a node, or None for the job's owner."""

    target: str | None
    action: str
    rule: str
    step: int
    why: str
    evidence: Sequence[str] = ()
    commands: Sequence[str] = ()
    run_by: str = "a person"


_Kind = TypeVar("_Kind")


def alike(kind: type[_Kind], source: object, **more: Any) -> _Kind:
    """A dataclass ``kind`` with every field that ``source`` has under the same name; ``more`` comes on top."""
    names = (known.name for known in fields(kind))  # type: ignore[arg-type]
    return kind(**{**{name: getattr(source, name) for name in names if hasattr(source, name)}, **more})


def numbered(facts: Iterable[Fact], first: int = 1) -> tuple[Fact, ...]:
    """Facts with ids ``f1``, ``f2`` … in the order given, counted from ``first``."""
    return tuple(Fact(**{**vars(fact), "id": f"f{number}"}) for number, fact in enumerate(facts, first))
