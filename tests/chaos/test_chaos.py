"""Short versions of the scenarios, two at a time; docs/nothing-lost.md has the long ones and their counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from tests.chaos import away, burst, clock, crash, failover, full, kill
from tests.chaos.invariants import Findings
from tests.chaos.scenario import Scene, opened
from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import missing_programs

pytestmark = pytest.mark.cluster
SEED = 3
#: Of ten disks that fill up, those that differ most.
STEPS = tuple(
    step for step in full.STEPS if step[:2] in {("daemon", "bytes"), ("shared", "inodes"), ("events", "bytes")}
)


def play(scenario: Callable[[Scene], Findings], backup: bool = False) -> Findings:
    with scratch_slot() as folder, opened(folder, SEED, cpus=16, backup=backup) as scene:
        return scenario(scene)


def killed_at_random_moments() -> Findings:
    return play(lambda scene: kill.play(scene, kills=6, jobs=8, verified=False))


def machines_that_crash() -> Findings:
    """The store comes back older, and then as it was at the crash."""
    return play(lambda scene: crash.play(scene, crashes=2, nodes=1, jobs=8, verified=False))


def all_of_slurm_away() -> Findings:
    return play(lambda scene: away.play(scene, ["all"], seconds=15.0))


def a_controller_that_dies_and_a_daemon_that_was_frozen() -> Findings:
    """A slurmctld that takes over sends ends of jobs once more, with the comment of their submission: so until the look
    that follows when it has forgotten them."""
    return play(lambda scene: failover.play(scene, ["frozen", "host"]), backup=True)


def a_clock_that_is_set() -> Findings:
    return play(lambda scene: clock.play(scene, [3600.0, -3600.0, -30.0], jobs=8, pause_s=6.0, verified=False))


def full_disks() -> Findings:
    return play(lambda scene: full.play(scene, STEPS, verified=False))


def many_jobs_that_end_at_once() -> Findings:
    found = play(lambda scene: burst.play(scene, jobs=24, hooks=True, verified=False))
    found.need(found.counts["comments"] == 24, "24 comments")
    return found


#: Neighbours of one pair run at the same time, each on a cluster of its own: they mostly wait.
PAIRS: tuple[tuple[Callable[[], Findings], ...], ...] = (
    (a_controller_that_dies_and_a_daemon_that_was_frozen, all_of_slurm_away),
    (machines_that_crash, a_clock_that_is_set),
    (killed_at_random_moments, full_disks),
    (many_jobs_that_end_at_once,),
)


@pytest.fixture(scope="module")
def played() -> Iterator[dict[Callable[[], Findings], Future[Findings]]]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    yield {}


@pytest.mark.timeout(1200)  # the first of a pair waits for both
@pytest.mark.parametrize("scenario", [each for pair in PAIRS for each in pair], ids=lambda one: one.__name__)
def test_nothing_is_lost(
    played: dict[Callable[[], Findings], Future[Findings]], scenario: Callable[[], Findings]
) -> None:
    if scenario not in played:
        (pair,) = (pair for pair in PAIRS if scenario in pair)
        with ThreadPoolExecutor() as pool:
            played.update({each: pool.submit(each) for each in pair})
            wait(played.values())
    found = played[scenario].result()
    assert found.broken == [], found.line()
    assert found.counts["failed runs"] > 0
