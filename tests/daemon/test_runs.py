"""Numbers of a job's runs, in whatever order they become known."""

from __future__ import annotations

import pytest

from nccl_slurm.daemon.runs import run_number
from nccl_slurm.history.rows import RunRow


@pytest.mark.parametrize(
    ("known", "start", "restarts", "number"),
    [
        ({}, 100.0, 0, 1),
        ({1: 100.0}, 101.5, 0, 1),  # one second here, another there
        ({1: 100.0}, 160.0, 1, 2),
        ({}, 160.0, 1, 2),  # nobody saw the first
        ({2: 160.0}, 100.0, 0, 1),  # accounting tells of it later
        ({3: 300.0}, 100.0, 0, 2),
        ({2: 100.0, 3: 300.0}, 50.0, 0, 1),
        ({1: 160.0}, 100.0, 0, 2),  # no number is left below
        ({1: 100.0, 2: 160.0}, 200.0, 1, 3),
        ({1: None}, 100.0, 0, 2),
    ],
)
def test_run_number(known: dict[int, float | None], start: float, restarts: int, number: int) -> None:
    rows = [RunRow("c", 7, run, "7", start=at) for run, at in known.items()]
    assert run_number(rows, start, restarts) == number
