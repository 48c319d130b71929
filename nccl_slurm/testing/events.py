"""What happens to a simulated job: causes only. What others do of it follows from how the real programs behave.

Each event is data. ``step`` counts the training steps from 0; a rank acts before it enters that step's collectives.
Events without a step strike while the job starts. ``failure_class`` is the class of `nccl_slurm.model.CLASSES` that the
event is, None where it is no failure. ``ranks`` and ``hosts`` are those that a verdict may name for it; a node may be
named for each of its ranks and a rank for its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "BlockWatchdog",
    "Cancel",
    "CannotConnect",
    "Crash",
    "EfaError",
    "EfaSetup",
    "Event",
    "Exit",
    "Freeze",
    "Hang",
    "HostOutOfMemory",
    "LaunchFails",
    "LinkDown",
    "LowMemlock",
    "Mismatch",
    "NeverJoins",
    "NodeFails",
    "OtherVersion",
    "PathBreaks",
    "QueuePairFails",
    "Raise",
    "Say",
    "ScriptFails",
    "ShmFull",
    "Slow",
    "Stall",
    "StorageStalls",
    "StoreFails",
    "Xid",
]


@dataclass(frozen=True)
class Event:
    """Base of all events. ``step`` None: while the job starts."""

    failure_class: ClassVar[str | None] = None

    @property
    def kind(self) -> str | None:
        """Its class of failure; where it depends on the event's values this is asked, not `failure_class`."""
        return self.failure_class

    @property
    def at(self) -> int | None:
        value = getattr(self, "step", None)
        return value if isinstance(value, int) else None

    @property
    def ranks(self) -> tuple[int, ...]:
        value = getattr(self, "rank", None)
        return (value,) if isinstance(value, int) else ()

    @property
    def hosts(self) -> tuple[str, ...]:
        value = getattr(self, "host", None)
        return (value,) if isinstance(value, str) else ()


# --- a rank stops, and lives


@dataclass(frozen=True)
class Hang(Event):
    """The rank stays in code of its own (a data loader, a lock) and never enters the collective. Its threads live."""

    failure_class: ClassVar[str | None] = "collective-missing-rank"
    rank: int
    step: int


@dataclass(frozen=True)
class Freeze(Event):
    """The whole process stands still (SIGSTOP, a call into the kernel that does not return): nothing is written."""

    failure_class: ClassVar[str | None] = "collective-missing-rank"
    rank: int
    step: int


@dataclass(frozen=True)
class BlockWatchdog(Event):
    """The rank's main thread and torch's watchdog thread are blocked; the heartbeat monitor ends the process."""

    failure_class: ClassVar[str | None] = "watchdog-stuck"
    rank: int
    step: int


@dataclass(frozen=True)
class Slow(Event):
    """From ``step`` on the rank needs ``seconds`` more a step. If that is shorter than the time-out, nothing fails."""

    failure_class: ClassVar[str | None] = "straggler"
    rank: int
    step: int
    seconds: float


@dataclass(frozen=True)
class Stall(Event):
    """All ranks enter the step's last collective and it never ends: the network swallows it without an error."""

    failure_class: ClassVar[str | None] = "collective-hang-unattributed"
    step: int


@dataclass(frozen=True)
class Mismatch(Event):
    """The rank issues another collective than the rest: other ``op`` (torch's name: ALLREDUCE, ALLGATHER, BROADCAST …)
    or other ``numel``."""

    failure_class: ClassVar[str | None] = "collective-mismatch"
    rank: int
    step: int
    op: str = "ALLREDUCE"
    numel: int = 2048


# --- a rank ends


@dataclass(frozen=True)
class Raise(Event):
    """An exception that nobody catches. ``text`` is the traceback's last line, as Python prints it."""

    rank: int
    step: int
    text: str = "ValueError: loss is nan"
    failure: str = "rank-exception"

    @property
    def kind(self) -> str | None:
        return self.failure


@dataclass(frozen=True)
class Crash(Event):
    """A signal ends the process: 11, 7, 6, 9 … ``failure``: another class than ``process-signal``."""

    failure_class: ClassVar[str | None] = "process-signal"
    rank: int
    step: int
    signal: int = 11


@dataclass(frozen=True)
class Exit(Event):
    """The program leaves without a word: ``sys.exit(code)``."""

    rank: int
    step: int
    code: int = 1

    @property
    def kind(self) -> str | None:
        return "rank-exception" if self.code else "collective-missing-rank"


@dataclass(frozen=True)
class HostOutOfMemory(Event):
    """The kernel kills the rank for the cgroup's memory limit; slurmstepd and the state of the job tell of it too."""

    failure_class: ClassVar[str | None] = "host-oom"
    rank: int
    step: int


# --- machines


@dataclass(frozen=True)
class Xid(Event):
    """The driver reports an Xid of the GPU of ``rank``, and the rank ends as it does with such a GPU: an exception of
    CUDA, or (79, 119, 120) it hangs in a call that does not return."""

    rank: int
    step: int
    number: int = 79

    @property
    def kind(self) -> str | None:
        return XID_CLASSES[self.number]


#: Xids that can be simulated → class (data/xid.toml).
XID_CLASSES = {
    13: "gpu-app-fault",
    31: "gpu-app-fault",
    48: "gpu-hw-ecc",
    74: "nvlink-fabric",
    79: "gpu-hw-lost",
    94: "gpu-hw-ecc",
    95: "gpu-hw-ecc",
    119: "gpu-hw-lost",
    149: "nvlink-fabric",
}


@dataclass(frozen=True)
class NodeFails(Event):
    """The node is gone: no line more, no record. Slurm finds it out after SlurmdTimeout."""

    failure_class: ClassVar[str | None] = "slurm-node-fail"
    host: str
    step: int


@dataclass(frozen=True)
class StorageStalls(Event):
    """A file system does not answer on this node: its ranks hang in it, its kernel says so."""

    failure_class: ClassVar[str | None] = "storage-stall"
    host: str
    step: int


# --- between machines


@dataclass(frozen=True)
class LinkDown(Event):
    """An InfiniBand port of the node loses its link: the kernel says so, and what goes over it fails on both ends."""

    failure_class: ClassVar[str | None] = "net-ib-transport"
    host: str
    step: int
    device: str = "mlx5_0"


@dataclass(frozen=True)
class PathBreaks(Event):
    """What two ranks send one another is lost on the way: both ends' retries run out, no port tells anything."""

    failure_class: ClassVar[str | None] = "net-ib-transport"
    rank: int
    peer: int
    step: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class EfaError(Event):
    """As `PathBreaks`, over EFA with the OFI plugin."""

    failure_class: ClassVar[str | None] = "net-efa-ofi"
    rank: int
    peer: int
    step: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return ()


# --- the start


@dataclass(frozen=True)
class QueuePairFails(Event):
    """A queue pair between two ranks can't be set up (wrong GID, no route)."""

    failure_class: ClassVar[str | None] = "net-ib-setup"
    rank: int
    peer: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class CannotConnect(Event):
    """NCCL's TCP connections to the ranks of this node are refused."""

    failure_class: ClassVar[str | None] = "net-socket-connect"
    host: str


@dataclass(frozen=True)
class EfaSetup(Event):
    """The OFI plugin finds no provider on this node."""

    failure_class: ClassVar[str | None] = "net-efa-ofi"
    host: str


@dataclass(frozen=True)
class ShmFull(Event):
    """The node's shared memory file system is full."""

    failure_class: ClassVar[str | None] = "resource-shm"
    host: str


@dataclass(frozen=True)
class LowMemlock(Event):
    """The limit of locked memory is too low on this node."""

    failure_class: ClassVar[str | None] = "resource-memlock"
    host: str


@dataclass(frozen=True)
class OtherVersion(Event):
    """NCCL has another version on this node, and the job fails of it."""

    failure_class: ClassVar[str | None] = "version-mismatch"
    host: str
    version: str = "2.19.3"


@dataclass(frozen=True)
class StoreFails(Event):
    """``how``: ``port`` (in use on the first node), ``name`` (the master's does not resolve), ``connect`` (nobody
    answers there)."""

    failure_class: ClassVar[str | None] = "rendezvous-store"
    how: str = "port"


@dataclass(frozen=True)
class NeverJoins(Event):
    """The rank hangs before it joins the process group: the others wait for its key in the store."""

    failure_class: ClassVar[str | None] = "collective-missing-rank"
    rank: int


@dataclass(frozen=True)
class LaunchFails(Event):
    """Slurm can't start the tasks on this node."""

    failure_class: ClassVar[str | None] = "slurm-launch"
    host: str
    why: str = "Job credential expired"


# --- the end


@dataclass(frozen=True)
class Cancel(Event):
    """``how``: ``cancel`` (scancel by a user), ``time`` (limit), ``preempt``, ``requeue``."""

    failure_class: ClassVar[str | None] = "preempt-cancel"
    step: int
    how: str = "cancel"


@dataclass(frozen=True)
class ScriptFails(Event):
    """The batch script ends with status 1, and nothing says why."""

    failure_class: ClassVar[str | None] = "unknown"
    step: int


# --- words


@dataclass(frozen=True)
class Say(Event):
    """A line that the rank's program prints; no cause of anything."""

    rank: int
    step: int
    text: str
