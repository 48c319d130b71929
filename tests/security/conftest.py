"""Fixture ``lab``: the real Slurm of tests/cluster with a daemon that judges every job, healed before each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import cluster as cluster
from tests.cluster.harness import Cluster

HERE = Path(__file__).parent
#: A reader that is held up must not hold up the test.
LIMITS = 'output_limit_s = 10\n\n[scope]\ndefault = "all"\n'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1800))  # a machine that is busy with other tests


@pytest.fixture(scope="session")
def judged(cluster: Cluster) -> Iterator[Cluster]:
    cluster.heal()
    before = cluster.daemon_config.read_text()
    cluster.write_daemon_config(before.replace("verify_s = 5\n", f"verify_s = 5\n{LIMITS}"))
    with cluster.capture_conf.open("a") as conf:
        conf.write("NCCL_SLURM_WORKER_LIMIT_S=40\n")
    shutil.copy(HERE / "attacks.py", cluster.programs)
    cluster.start_daemon()
    yield cluster
    cluster.stop_daemon()


def heal(judged: Cluster) -> None:
    """With the daemon too: tests of another file may have stopped it, whichever file comes first."""
    judged.heal()
    if not judged.alive("nccl-slurm"):
        judged.start_daemon()


@pytest.fixture
def lab(judged: Cluster) -> Cluster:
    heal(judged)
    return judged
