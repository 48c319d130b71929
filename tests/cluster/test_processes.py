"""The test cluster's own processes are found and ended, strangers are left alone. No Slurm needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.processes import Processes, free_ports, wait_until

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    for name in ("pid", "log"):
        (tmp_path / name).mkdir()
    return Processes(tmp_path)


def test_ports_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


def test_a_daemon_is_found_by_another_instance_and_stopped(processes: Processes) -> None:
    processes.start("one", ["sleep", "60"], ENV)
    other = Processes(processes.scratch)
    assert other.alive("one")
    assert other.pid("one") == processes.pid("one")
    processes.stop("one")
    assert not processes.alive("one")
    assert not other.alive("one")
    assert other.pid("one") is None


def test_a_stranger_with_the_pid_of_an_old_file_is_not_ours(processes: Processes) -> None:
    with subprocess.Popen(["sleep", "60"], env=ENV) as stranger:
        (processes.scratch / "pid" / "one.pid").write_text(str(stranger.pid))
        assert not processes.alive("one")
        processes.stop("one")
        processes.stop_all()
        assert stranger.poll() is None
        stranger.kill()


def test_children_and_grandchildren_end_too_even_if_they_ignore_sigterm(processes: Processes) -> None:
    inner = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
    processes.start("one", ["sh", "-c", f'sh -c "{inner}" & wait'.replace("$$", "\\$\\$")], ENV)
    out = processes.scratch / "log" / "one.out"
    assert wait_until(lambda: out.read_text().strip().isdigit(), 5)
    grandchild = Path("/proc") / out.read_text().strip()
    assert grandchild.exists()
    processes.stop_all()
    assert not processes.alive("one")
    assert wait_until(lambda: _gone(grandchild), 5)


def test_a_hook_of_this_cluster_is_ours_and_a_shell_with_its_slurm_conf_is_not(processes: Processes) -> None:
    conf = {**ENV, "SLURM_CONF": f"{processes.scratch}/etc/slurm.conf"}
    with (
        subprocess.Popen(["sleep", "60"], env={**conf, "SLURM_JOB_ID": "1"}) as hook,
        subprocess.Popen(["sleep", "60"], env=conf) as shell,
    ):
        processes.stop_all()
        assert hook.wait(5) == -15
        assert shell.poll() is None
        shell.kill()


def _gone(process: Path) -> bool:
    """Ended, or a zombie that waits for its parent."""
    try:
        return ") Z " in (process / "stat").read_text()
    except OSError:
        return True
