"""Hooks on what does not answer, and with a capture.conf that harms: they end, with status 0."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.processes import wait_until
from tests.hooks.site import HOOKS, PROLOG, USER, Site

#: Above the hooks' ten seconds, far below the thirty that `Site.run` waits.
LIMIT_S = 20.0
#: What a hook waits for a capture.conf that does not answer.
PATIENCE_S = 5.0


def prolog_before(site: Site, hook: str) -> None:
    """A task's prolog goes by what the node's prolog met."""
    if hook == "task_prolog":
        site.run(HOOKS[0], PROLOG, limit=LIMIT_S)
        assert site.mark.exists()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_capture_conf_that_does_not_answer(site: Site, hook: str) -> None:
    os.mkfifo(site.folder / "hangs")
    site.conf.write_text(f"read -r x <{site.folder}/hangs\n")
    prolog_before(site, hook)
    done = site.run(hook, PROLOG, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_capture_conf_that_becomes_a_fifo_holds_nobody_up(site: Site, hook: str) -> None:
    """Also where the prolog had found it good: a task has no limit of its own then."""
    site.run(HOOKS[0], PROLOG)
    site.conf.unlink()
    os.mkfifo(site.conf)
    site.conf.chmod(0o644)
    begun = time.monotonic()
    done = site.run(hook, PROLOG, limit=LIMIT_S)
    assert (done.returncode, done.stdout, site.mark.exists()) == (0, "", False)
    assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "text",
    [
        "kill $$",
        "kill -USR1 $$",
        "exit 3",
        "exec false",
        "trap 'exit 4' EXIT TERM",
        "kill() { :; }; PATH=/nonexistent",
        "unset SLURM_JOB_ID; set -eu; false",
    ],
)
def test_a_capture_conf_that_harms(site: Site, hook: str, text: str) -> None:
    with site.conf.open("a") as file:
        file.write(text + "\n")
    assert site.run(hook, PROLOG, limit=LIMIT_S).returncode == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_started_with_all_signals_blocked(site: Site, hook: str) -> None:
    """As slurmctld does it: dash's `wait` never ends then."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        process = subprocess.Popen([site.folder / hook], env=PROLOG, stdout=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert process.wait(timeout=LIMIT_S) == 0


def test_a_task_goes_on_where_its_sites_script_can_not_be_told(site: Site) -> None:
    """The name is in capture.conf; once that answers, the script runs again, and what it says counts."""
    site.configure(SITE_TASK_PROLOG=str(site.script("theirs", "echo print theirs; exit 3")))
    text = site.conf.read_text()
    os.mkfifo(site.folder / "hangs")
    site.conf.write_text(f"read -r x <{site.folder}/hangs\n{text}")
    prolog_before(site, "task_prolog")
    done = site.run("task_prolog", PROLOG, user=USER, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "")
    site.conf.write_text(text)
    done = site.run("task_prolog", PROLOG, user=USER, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (3, "print theirs\n")


def test_a_task_on_a_node_whose_spool_hung_gets_its_sites_words_alone(site: Site) -> None:
    site.configure(SITE_TASK_PROLOG=str(site.script("theirs", "echo print theirs")))
    site.run(HOOKS[0], PROLOG)
    site.mark.write_text("1\n")
    done = site.run("task_prolog", PROLOG, user=USER, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "print theirs\n")


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
@pytest.mark.parametrize("hook", HOOKS[:2])
def test_one_process_waits_for_what_hangs(site: Site, hook: str) -> None:
    """While it does, hooks leave the node's disks alone; when it is gone, the next one works and removes the mark."""
    stuck, folder = site.folder / "50-nccl-slurm", site.folder / "hangs"
    shutil.copy("/bin/cat", stuck)
    folder.mkdir()
    with mounts.private_mounts():
        with mounts.hung(folder):
            process = _stuck(stuck, folder / "x")
            site.mark.write_text(f"{process.pid}\n")
            assert site.run(hook, PROLOG).returncode == 0
            assert not site.spool.exists()
        process.wait(20)
        assert site.run(hook, PROLOG).returncode == 0
    assert len(site.runs()) == 1 and not site.mark.exists()


def _stuck(program: Path, file: Path) -> subprocess.Popen[bytes]:
    """In state D. One that is killed before the server has taken its request just ends, and another one is started."""
    for _ in range(20):
        process = subprocess.Popen([program, file])
        if _hangs_when_killed(process):
            return process
        process.wait(20)
    raise AssertionError("nothing hangs")


def _hangs_when_killed(process: subprocess.Popen[bytes]) -> bool:
    assert wait_until(lambda: "wait_answer" in Path(f"/proc/{process.pid}/wchan").read_text(), 20)
    process.kill()
    assert wait_until(lambda: _state(process.pid) in "DZ", 20)
    return _state(process.pid) == "D"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("pid", ["1\n", "0\n", "-1\n", "x\n", "", "1/../self\n", "99999999999\n"])
def test_a_mark_with_the_number_of_another_process_holds_nobody_up(site: Site, pid: str) -> None:
    site.mark.write_text(pid)
    site.run(HOOKS[0], PROLOG)
    assert len(site.runs()) == 1 and not site.mark.exists()
