from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.daemon.clocks import offsets
from nccl_slurm.daemon.diagnose import Parts, diagnose
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Job, Parsed
from tests.collect.test_shared import record

JOB = Job("42", 42, "c", state="FAILED", nodes=("n1", "n2"), start=1000.0, end=5000.0)


def hook(time: float | None) -> dict[str, Any] | None:
    return None if time is None else {"time": time, "boot_id": None, "env": {}}


def row(
    node: str,
    prolog: float | None = 1001.0,
    written: float = 5003.0,
    *,
    epilog: float | None = None,
    chrony: float | None = None,
    received: float = 5004.0,
) -> RecordRow:
    told = record(node=node, prolog=hook(prolog), epilog=hook(epilog), written=written)
    told["clock"] = {"source": "chronyc" if chrony is not None else "unknown", "offset_s": chrony, "synchronized": None}
    return RecordRow("c", 42, 1, node, received, "", False, told)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # started at 1000 to 1001, prolog's second is 1001: 2 s ahead at most; stored 1 s after it was written
        ([row("n1")], {"n1": (0.5, 1.5)}),
        ([row("n1", 1601.0, 5603.0)], {"n1": (600.5, 1.5)}),
        ([row("n1", 401.0, 4403.0)], {"n1": (-599.5, 1.5)}),
        ([row("n1", received=8600.0)], {"n1": (-1797.5, 1799.5)}),  # delivered an hour late
        ([row("n1", 1061.0)], {"n1": (30.5, 31.5)}),  # a node that had to boot first
        ([row("n1", None, epilog=5001.0)], {"n1": (0.5, 1.5)}),
        ([row("n1", None)], {}),
        ([row("n1", 401.0)], {}),  # set forward while the run went on
        ([row("n1", chrony=-0.25), row("n2", chrony=0.5)], {"n1": (0.0, 0.25), "n2": (0.0, 0.5)}),
        ([row("n1", chrony=-0.25), row("n2")], {"n1": (0.5, 1.5), "n2": (0.5, 1.5)}),
        ([], {}),
    ],
    ids=str,
)
def test_offsets(rows: list[RecordRow], expected: dict[str, tuple[float, float]]) -> None:
    assert {node: tuple(offset) for node, offset in offsets(JOB, rows).items()} == expected


def test_an_unmeasured_clock_is_a_gap_and_one_that_was_off_is_told() -> None:
    found = diagnose(Parts(JOB, [row("n1", 1601.0, 5603.0), row("n2", None)], (), Parsed(), ()), "final").report
    gaps = [gap["why"] for gap in found["gaps"] if gap["source"] == "clock of n2"]
    assert gaps == ["not measured: its times and other nodes' have an order only where they are 600 s apart"]
    told = [step["text"] for step in found["inferences"] if step["rule"] == "clock.off"]
    assert len(told) == 1 and told[0].startswith("n1's clock was 600 s ahead of the controller's, give or take 1.5 s")
