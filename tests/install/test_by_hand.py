"""Where systemd does not run: what is said of units and of a daemon that somebody started by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.install.apply import Applied, systemd_runs
from nccl_slurm.install.main import _start
from nccl_slurm.install.options import parse
from nccl_slurm.install.processes import daemons
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.skipif(systemd_runs(), reason="systemd runs here")


def said(prefix: Path, *options: str, touched: tuple[str, ...] = ()) -> list[str]:
    told: list[str] = []
    chosen = parse(["--controller", "--prefix", str(prefix), *options])
    _start("controller", chosen, Applied(chosen.dry_run, told.append, touched=list(touched)))
    return told


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    shutil.copy("/bin/bash", tmp_path / "venv" / "bin" / "python")
    return tmp_path


@pytest.fixture
def daemon(prefix: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process, run by the environment's interpreter; a sleeping one stands for the daemon."""
    command = [str(prefix / "venv" / "bin" / "python"), "-c", "sleep 600; :", "daemon"]
    with subprocess.Popen(command, start_new_session=True) as child:
        try:
            assert wait_until(lambda: daemons(str(prefix / "venv")) == [child.pid], 30.0)
            yield child
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_units_are_said_to_be_where_they_are(prefix: Path) -> None:
    start = "to start the daemon: /usr/local/bin/nccl-slurm daemon"
    assert said(prefix) == ["systemd does not run here: the units are in place only", start]
    assert said(prefix, "--dry-run") == ["systemd does not run here: the units would be in place only", start]


def test_an_upgrade_asks_for_a_restart(prefix: Path, daemon: subprocess.Popen[bytes]) -> None:
    assert said(prefix) == ["systemd does not run here: the units are in place only"]
    (_, told) = said(prefix, touched=("/opt/x.py",))
    assert told.startswith(f"the daemon (pid {daemon.pid}) still runs what was here before")
