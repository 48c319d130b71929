"""How many GPUs a run had: known where Slurm tells it, none only where nothing is left that could tell of one."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.daemon.diagnose import Parts, evidence_of
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Gap, Job, Parsed
from tests.collect.test_shared import record

READ, UNREAD = Parsed(bytes_read=10), Parsed(gaps=(Gap("job output", "its file is gone"),))
GPU = {"index": 0, "uuid": "GPU-a", "bus_id": "0000:a1:00"}


def row(node: str, *, hook: bool = True, gpus: str | None = None, seen: list[Any] | None = None) -> RecordRow:
    env = {} if gpus is None else {"SLURM_JOB_GPUS": gpus}
    prolog = {"time": 5.0, "boot_id": None, "env": env} if hook else None
    after = None if seen is None else {"start": 1.0, "end": 2.0, "gpus": seen, "driver": None}
    told = record(node=node, prolog=prolog, snapshots={"before": None, "after": after})
    return RecordRow("c", 42, 1, node, 9.0, "", False, told)


@pytest.mark.parametrize(
    ("told", "rows", "output", "expected"),
    [
        (8, [row("n1"), row("n2")], READ, 8),
        (None, [row("n1"), row("n2")], READ, 0),
        (0, [row("n1"), row("n2")], READ, 0),
        (None, [row("n1", seen=[]), row("n2")], READ, 0),
        (None, [row("n1"), row("n2")], Parsed(), 0),  # there is no output
        (None, [row("n1"), row("n2")], UNREAD, None),
        (None, [row("n1")], READ, None),  # a record is missing
        (None, [row("n1"), row("n2", hook=False)], READ, None),  # no hook ran there
        (None, [row("n1", gpus="0,1"), row("n2")], READ, None),  # Slurm doesn't count them
        (0, [row("n1", seen=[GPU]), row("n2")], READ, None),  # Slurm doesn't know them
        (None, [], READ, None),
    ],
)
def test_gpus(told: int | None, rows: list[RecordRow], output: Parsed, expected: int | None) -> None:
    job = Job("42", 42, "c", state="FAILED", nodes=("n1", "n2"), start=1.0, end=9.0, gpus=told)
    known = evidence_of(Parts(job, rows, (), output, ())).job
    assert known is not None and known.gpus == expected
