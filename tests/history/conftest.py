"""``url``: an empty database of each kind that the store takes; ``store``: the store in it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.history.store import Store
from tests.history import mariadb

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[mariadb.Server]:
    lacking = mariadb.missing()
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    folder = Path(tempfile.mkdtemp(prefix="sql", dir="/tmp"))
    try:
        with mariadb.Server(folder) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: mariadb.Server = request.getfixturevalue("server")
    name = f"store{next(_NUMBERS)}"
    server.run(f"create database {name} character set latin1")  # a server's default must not matter
    return server.url(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
