"""Which slurmd may still run with the lines of an earlier slurm.conf."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.install.slurmd import Slurmd, running, unread

FILE = "/etc/slurm/slurm.conf"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that is called slurmd, and is told its slurm.conf in its environment."""
    program = tmp_path / "slurmd"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "600"], env={"SLURM_CONF": str(tmp_path / "slurm.conf")}) as child:
        yield child
        child.kill()


def seen(pid: int) -> Slurmd:
    """When it has become what it was started as."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := [one for one in running() if one.pid == pid]:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"{pid} is not seen")


def test_a_change_after_its_start_may_be_unread(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    one = seen(process.pid)
    assert one.conf == str(conf) and one.files() == [str(conf)]
    assert abs(one.started - time.time()) < 120
    conf.write_text("ClusterName=x\n")
    os.utime(conf, (1, 1))  # as rsync and cp -p leave it
    assert f"slurmd (pid {process.pid}, since " in unread(one, one.files(), cached=False)
    assert " is older than " in unread(Slurmd(one.pid, time.time() - 60, one.conf), one.files(), cached=False)
    soon = Slurmd(one.pid, os.stat(conf).st_ctime + 1, one.conf)
    told = unread(soon, one.files(), cached=False)
    assert f" began within 2 s of the last change of {conf} " in told and "older" not in told
    later = Slurmd(one.pid, time.time() + 60, one.conf)
    assert unread(later, one.files(), cached=False) == ""


def fake(proc: Path, pid: int, *words: str, ticks: int = 0) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / "stat").write_text("cpu 1\nbtime 1700000000\n")
    fields = " ".join(["S", *["0"] * 18, str(ticks), *["0"] * 20])
    (proc / str(pid) / "stat").write_text(f"{pid} (slurmd) {fields}\n")
    (proc / str(pid) / "cmdline").write_text("\0".join(words) + "\0")
    (proc / str(pid) / "environ").write_text("HOME=/\0")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("slurmd", "-D"), [FILE]),
        (("slurmd", "-f", "/a/slurm.conf", "-D"), ["/a/slurm.conf"]),
        (("slurmd", "-f/a/slurm.conf"), ["/a/slurm.conf"]),
        (("slurmd", "--conf-server", "ctl"), []),
    ],
)
def test_which_file_it_has_read(tmp_path: Path, words: tuple[str, ...], files: list[str]) -> None:
    fake(tmp_path, 7, *words, ticks=100 * os.sysconf("SC_CLK_TCK"))
    (one,) = running(str(tmp_path))
    assert one.started == 1700000100.0
    assert one.files(exists=lambda path: path == FILE) == files


def test_where_no_file_is_found_nothing_is_proven_but_by_a_cache() -> None:
    assert "its slurm.conf is not found" in unread(Slurmd(7, 0.0), [], cached=False)
    assert unread(Slurmd(7, 0.0, conf_server=True), [], cached=True) == ""
