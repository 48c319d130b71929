"""Help for tests of your own: a fake Slurm, and jobs that are simulated, fail, and leave what a real one leaves.

    from nccl_slurm.testing import Hang, Scenario, simulate, truth, write
    story = simulate(Scenario(world=64, events=[Hang(rank=13, step=40)]))
    write(story, Path("logs"))             # then: nccl-slurm report --logs logs
    truth(story).ranks                     # {13}

`Scenario` says what a job is, the events what happens to it; docs/testing.md shows more. Names in ``__all__`` stay.
"""

from __future__ import annotations

from nccl_slurm.scheduler.fake import FakeSlurm
from nccl_slurm.testing.events import (
    BlockWatchdog,
    Cancel,
    CannotConnect,
    Crash,
    EfaError,
    EfaSetup,
    Event,
    Exit,
    Freeze,
    Hang,
    HostOutOfMemory,
    LaunchFails,
    LinkDown,
    LowMemlock,
    Mismatch,
    NeverJoins,
    NodeFails,
    OtherVersion,
    PathBreaks,
    QueuePairFails,
    Raise,
    Say,
    ScriptFails,
    ShmFull,
    Slow,
    Stall,
    StorageStalls,
    StoreFails,
    Xid,
)
from nccl_slurm.testing.folder import job_files, node_files, write
from nccl_slurm.testing.records import job, node_record, node_records, output
from nccl_slurm.testing.scenario import Group, Scenario, blocks, strides
from nccl_slurm.testing.simulate import simulate
from nccl_slurm.testing.story import Story
from nccl_slurm.testing.truth import Truth, truth

__all__ = [
    "BlockWatchdog",
    "Cancel",
    "CannotConnect",
    "Crash",
    "EfaError",
    "EfaSetup",
    "Event",
    "Exit",
    "FakeSlurm",
    "Freeze",
    "Group",
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
    "Scenario",
    "ScriptFails",
    "ShmFull",
    "Slow",
    "Stall",
    "StorageStalls",
    "StoreFails",
    "Story",
    "Truth",
    "Xid",
    "blocks",
    "job",
    "job_files",
    "node_files",
    "node_record",
    "node_records",
    "output",
    "simulate",
    "strides",
    "truth",
    "write",
]
