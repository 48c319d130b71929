"""Settings of hypothesis for all tests: no time limit for an example (the machine is shared), many where asked for.

Tests on a real Slurm run on each release that NCCL_SLURM_TEST_RELEASES names (``22.05,24.11,26.05``), in their order;
without it on the machine's own.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.cluster import releases
from tests.cluster.harness import missing_programs

RELEASES = [name.strip() for name in os.environ.get("NCCL_SLURM_TEST_RELEASES", "").split(",") if name.strip()]

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if RELEASES and "release" in metafunc.fixturenames:
        metafunc.parametrize("release", RELEASES, indirect=True, scope="session")


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> str | None:
    """For `Cluster`: None is the machine's own. Skips where that release can't be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    wanted: str | None = getattr(request, "param", None)
    if wanted is None or wanted == releases.own():
        if missing := missing_programs():
            pytest.skip(f"not installed: {', '.join(missing)}")
        return None
    if why := releases.missing(wanted):
        pytest.skip(f"Slurm {wanted}: {why}")
    return wanted
