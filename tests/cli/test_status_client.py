"""``nccl-slurm status``: whom the daemon asks about Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_slurm.cli.status import command
from nccl_slurm.clock import MovableClock
from nccl_slurm.config import loads
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.fake import FakeSlurm


@pytest.mark.parametrize("backend", ["commands", "pyslurm"])
def test_whom_the_daemon_asks(tmp_path: Path, backend: str) -> None:
    file = tmp_path / "nccl-slurm.toml"
    file.write_text(f'[paths]\nstate = "{tmp_path}"\nevents = "{tmp_path}/events"\n')
    loaded = loads(file.read_text(), str(file))
    slurm, store = FakeSlurm(), Store.open(loaded.store_url)
    slurm.backend = backend
    clock = MovableClock(1_000_000_000.0)
    Daemon(loaded, slurm, store, clock, OutputReader("", 1.0), slurm.settings()).tick()
    store.close()
    as_json = CliRunner().invoke(command, ["--json", "--config", str(file)])
    assert json.loads(as_json.output)["slurm"] == backend
    as_text = CliRunner().invoke(command, ["--config", str(file)])
    assert f"slurm     asked by {'pyslurm' if backend == 'pyslurm' else 'its commands'}" in as_text.output
