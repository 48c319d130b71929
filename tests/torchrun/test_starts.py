"""Runs that never began: who is named, and who is not."""

from __future__ import annotations

import pytest

from tests.torchrun.conftest import Judge
from tests.torchrun.judge import mistakes
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import STARTS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("scenario", STARTS, ids=[scenario.name for scenario in STARTS])
def test_verdict(scenario: Scenario, verdict_on: Judge) -> None:
    assert mistakes(verdict_on(scenario)) == []
