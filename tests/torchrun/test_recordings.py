"""Ranks that do something else than the rest, and what flight recorder dumps tell: who is named, and who is not."""

from __future__ import annotations

import pytest

from tests.torchrun.conftest import Judge
from tests.torchrun.judge import mistakes
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import RECORDINGS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("scenario", RECORDINGS, ids=[scenario.name for scenario in RECORDINGS])
def test_verdict(scenario: Scenario, verdict_on: Judge) -> None:
    assert mistakes(verdict_on(scenario)) == []
