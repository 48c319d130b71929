"""Short versions of the scenarios; docs/nothing-lost.md has the long ones and their counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def opened_here(*, backup: bool = False) -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with scratch_slot() as folder, opened(folder, SEED, cpus=16, backup=backup) as made:
        yield made


@pytest.fixture
def scene() -> Iterator[Scene]:
    with opened_here() as made:
        yield made


@pytest.fixture
def two_controllers() -> Iterator[Scene]:
    with opened_here(backup=True) as made:
        yield made


def holds(found: Findings) -> None:
    assert found.broken == [], found.line()
    assert found.counts["failed runs"] > 0


def test_killed_at_random_moments(scene: Scene) -> None:
    holds(kill.play(scene, kills=10, jobs=8, verified=False))


def test_machines_that_crash(scene: Scene) -> None:
    holds(crash.play(scene, crashes=3, nodes=1, jobs=8, verified=False))


def test_all_of_slurm_away(scene: Scene) -> None:
    holds(away.play(scene, ["all"], seconds=20.0))


def test_a_controller_that_dies_and_a_daemon_that_was_frozen(two_controllers: Scene) -> None:
    """A slurmctld that takes over sends ends of jobs once more, with the comment of their submission: so until the look
    that follows when it has forgotten them."""
    holds(failover.play(two_controllers, ["frozen", "host"]))


def test_a_clock_that_is_set(scene: Scene) -> None:
    holds(clock.play(scene, [3600.0, -3600.0, -30.0], jobs=8, verified=False))


def test_full_disks(scene: Scene) -> None:
    holds(full.play(scene, STEPS, verified=False))


def test_forty_jobs_that_end_at_once(scene: Scene) -> None:
    found = burst.play(scene, jobs=40, hooks=True, verified=False)
    holds(found)
    assert found.counts["comments"] == 40
