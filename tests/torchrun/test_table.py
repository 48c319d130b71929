"""The table of scenarios itself: no torch is needed to read it."""

from __future__ import annotations

import re

import pytest

from nccl_slurm.model import ACTIONS, CLASSES
from tests.bench.torchrun import BAR
from tests.torchrun.runner import ROOT
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import ALL, MISSED

KINDS_MIN = 40


def parts() -> set[str]:
    """Names of parts and habits that train.py has; its modules can only be imported by a worker of torchrun."""
    texts = "".join((ROOT / "tests" / "torchrun" / name).read_text() for name in ("parts.py", "habits.py"))
    return set(re.findall(r"    def (?:before|do|groups|each)_(\w+)\(", texts))


def test_there_are_enough_kinds_of_one_name_each() -> None:
    assert len({scenario.name for scenario in ALL}) == len(ALL) >= KINDS_MIN
    assert len({(one.nodes, one.per_node) for one in ALL}) >= 4


def test_known_misses_leave_the_bar_in_reach() -> None:
    told = {scenario.name for scenario in ALL if scenario.determinable}
    assert told >= MISSED
    assert len(told - MISSED) >= BAR * len(told)


@pytest.mark.parametrize("scenario", ALL, ids=[scenario.name for scenario in ALL])
def test_a_scenario_says_what_there_is(scenario: Scenario) -> None:
    assert {scenario.failure_class, *scenario.accept} <= set(CLASSES)
    assert set(scenario.actions) <= set(ACTIONS)
    assert {*scenario.culprits, *scenario.on} <= set(range(scenario.world))
    assert {scenario.part, scenario.habit} - {""} <= parts()
    assert bool(scenario.culprits) or not scenario.determinable
