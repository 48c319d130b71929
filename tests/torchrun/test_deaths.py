"""Ranks that die, raise, exit, or are ended from outside: who is named, and who is not."""

from __future__ import annotations

import pytest

from tests.torchrun.conftest import Judge
from tests.torchrun.judge import mistakes
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import DEATHS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("scenario", DEATHS, ids=[scenario.name for scenario in DEATHS])
def test_verdict(scenario: Scenario, verdict_on: Judge) -> None:
    assert mistakes(verdict_on(scenario)) == []
