"""The runs of a file's scenarios, started together and waited for one by one: they mostly wait for time-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.torchrun.judge import Judged, judge
from tests.torchrun.runner import missing, run
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import MISSED

#: Three files run at a time in the whole suite, on two cores.
_TOGETHER = 3

Judge = Callable[[Scenario], Judged]


@pytest.fixture(scope="module")
def verdict_on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Where a culprit was missed that can be told, the run is made once more: an agent may end the others before
    they have told that they waited, and then this one run does not tell. A false accusation stays one."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("runs")
    pool = ThreadPoolExecutor(_TOGETHER)
    runs: dict[str, Future[Judged]] = {}
    for number, scenario in enumerate(_selected(request)):
        runs[scenario.name] = pool.submit(_twice, scenario, folder / f"{number:02d}")

    def result(scenario: Scenario) -> Judged:
        one = runs[scenario.name].result()
        if scenario.may_recover and all(code == 0 for code in one.run.exits.values()):
            pytest.skip("torchrun's restart succeeded this time: nothing failed in the end")
        return one

    yield result
    pool.shutdown(cancel_futures=True)


def _selected(request: pytest.FixtureRequest) -> list[Scenario]:
    """Those of this file that will be asked for: ``-k`` may have left out the others."""
    items = (item for item in request.session.items if item.path == request.path and hasattr(item, "callspec"))
    return [item.callspec.params["scenario"] for item in items]


def _twice(scenario: Scenario, folder: Path) -> Judged:
    first = judge(run(scenario, folder))
    if first.culprit != "missed" or scenario.name in MISSED:
        return first
    return judge(run(scenario, folder.with_name(folder.name + ".again")))
