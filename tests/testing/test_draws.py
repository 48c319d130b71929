"""A quick look at all classes: nobody is accused falsely, and who is proven is named (more: tests/bench/draws.py)."""

from __future__ import annotations

import pytest

from nccl_slurm.model import CLASSES
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.testing.case import case_of
from tests.bench.draws import MAKERS, draw

#: Those come by themselves: where records are missing, and with noise after the end.
BY_THEMSELVES = {"net-peer-lost", "benign-teardown"}


def test_every_class_is_drawn() -> None:
    assert set(MAKERS) | BY_THEMSELVES == set(CLASSES)


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", MAKERS)
def test_a_draw_accuses_nobody_falsely(name: str, number: int, rows: Rows) -> None:
    one = case_of(draw(name, 700 + number, 64), rows)
    assert one.culprit in ("right", "nobody"), one.verdict
    assert not one.truth.determinable or one.class_right, one.verdict


@pytest.mark.parametrize("seed", range(3))
def test_the_same_draw_is_the_same_scenario(seed: int) -> None:
    assert draw("cuda-oom", seed, 64) == draw("cuda-oom", seed, 64)
    assert draw("cuda-oom", seed, 64) != draw("cuda-oom", seed + 1, 64)
