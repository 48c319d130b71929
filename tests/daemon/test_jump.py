"""A clock that is ahead for a while, or a daemon that was away: nothing is forgotten for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nccl_slurm.daemon.jump import HELD_S, Jumps
from nccl_slurm.history.store import Store
from tests.daemon.test_loop import Lab, end_badly
from tests.daemon.test_loop import lab as lab
from tests.daemon.test_proposals import lost_gpu, states

DAY = 86400.0
T = 1_000_000_000.0
YEARS = 3 * 365 * DAY


@pytest.mark.parametrize(
    ("looks", "held", "believed"),
    [
        ([T], False, T),  # a new store
        ([T, T + 3600, T + 7200], False, T + 7200),
        ([T, T + YEARS], True, T),
        ([T, T + YEARS, T + YEARS + 60], True, T),
        ([T, T + YEARS, T + 60], False, T + 60),  # set back
        ([T, T + YEARS, T + YEARS + HELD_S / 2, T + YEARS + HELD_S], False, T + YEARS + HELD_S),  # it goes on
        ([T, T + YEARS, T + 2 * YEARS, T + 2 * YEARS + 60], True, T),  # and leaps again
        ([T, T + YEARS, T + 2 * YEARS, T + YEARS + 60], False, T + YEARS + 60),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_when_a_clock_is_believed(
    tmp_path: Path, looks: Sequence[float], held: bool, believed: float, restarts: bool
) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        jumps = Jumps(store)
        for now in looks:
            jumps = Jumps(store) if restarts else jumps
            jumps.see(now)
            store.set_value("heartbeat", int(now))
        assert (jumps.held, jumps.believed(looks[-1])) == (held, believed)


def loses_a_gpu(lab: Lab) -> None:
    job = end_badly(lab, "n1")
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(40)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_ahead_for_two_minutes_forgets_nothing(lab: Lab, restarts: bool) -> None:
    loses_a_gpu(lab)
    before = lab.store.machine("n1").events
    for seconds in (YEARS, -YEARS):
        lab.clock.sleep(seconds)
        if restarts:
            lab.restart()
        lab.run(130)
    assert states(lab) == [("i-1", "reboot", "open")]
    assert all(event in lab.store.machine("n1").events for event in before)
    assert any("leapt ahead" in note.text for note in lab.store.notes("clock"))


def test_a_daemon_that_was_away_forgets_a_day_later(lab: Lab) -> None:
    loses_a_gpu(lab)
    lab.clock.sleep(YEARS)
    lab.run(130)
    assert states(lab) == [("i-1", "reboot", "open")]
    lab.clock.sleep(DAY - 1)
    lab.run(130)
    assert states(lab) == [] or states(lab) == [("i-1", "reboot", "expired")]
    assert list(lab.store.machine("n1").of_kind("fault")) == []
