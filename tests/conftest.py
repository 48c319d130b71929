"""Settings of hypothesis for all tests: no time limit for an example (the machine is shared), many where asked for.

Tests on a real Slurm run on each release that NCCL_SLURM_TEST_RELEASES names (``22.05,24.11,26.05``), in their order;
without it on the machine's own.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import settings

from tests.cluster import releases
from tests.cluster.client import ClusterError
from tests.cluster.harness import missing_programs

RELEASES = [name.strip() for name in os.environ.get("NCCL_SLURM_TEST_RELEASES", "").split(",") if name.strip()]

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if RELEASES and "release" in metafunc.fixturenames:
        metafunc.parametrize("release", RELEASES, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What mostly waits comes first: of several processes none is left alone with it at the end."""
    items.sort(key=lambda item: not any(item.iter_markers("cluster")) and not any(item.iter_markers("torch")))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Releases are made here, since it takes longer than a test may; what goes wrong is told by the fixture."""
    if session.config.option.collectonly or os.geteuid() != 0:
        return
    wanted = {item.callspec.params.get("release") for item in session.items if hasattr(item, "callspec")}
    for name in wanted & set(releases.SUITES):
        if name != releases.own() and not releases.missing(name):
            with suppress(ClusterError):
                releases.find(name)


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
    releases.find(wanted)
    return wanted
