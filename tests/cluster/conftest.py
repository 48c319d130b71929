"""Fixtures: ``cluster`` is one real Slurm a test run, ``idle_cluster`` the same, healed before each test."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster

HERE = Path(__file__).parent
BASE = Path(os.environ.get("NCCL_SLURM_TEST_SCRATCH", "/var/tmp/nccl-slurm-test"))
SLOTS = 16


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "release" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@contextmanager
def scratch_slot() -> Iterator[Path]:
    """The first scratch folder that no other test run holds; a crashed run's is free again, and found again."""
    BASE.mkdir(mode=0o755, exist_ok=True)
    if BASE.is_symlink() or BASE.stat().st_uid != os.geteuid():
        pytest.fail(f"{BASE} belongs to somebody else")
    for slot in range(SLOTS):
        with (BASE / f"{slot}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield BASE / str(slot)
            return
    pytest.fail(f"{SLOTS} test runs hold all scratch folders in {BASE}")


@pytest.fixture(scope="session")
def cluster(release: str | None) -> Iterator[Cluster]:
    with scratch_slot() as folder, Cluster(folder, release=release) as running:
        yield running


@pytest.fixture
def idle_cluster(cluster: Cluster) -> Cluster:
    cluster.heal()
    return cluster


@pytest.fixture(scope="module")
def everything(cluster: Cluster) -> Iterator[Cluster]:
    """With a daemon that has every job in its scope."""
    cluster.heal()
    before = cluster.daemon_config.read_text()
    cluster.write_daemon_config(before + '\n[scope]\ndefault = "all"\n')
    if cluster.alive("nccl-slurm"):
        cluster.stop_daemon()
    cluster.start_daemon()
    yield cluster
    cluster.stop_daemon()
    cluster.write_daemon_config(before)
