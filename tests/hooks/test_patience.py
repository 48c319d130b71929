"""Hooks on what does not answer, and with a capture.conf that harms: they end, with status 0."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.hooks.site import HOOKS, PROLOG, USER, Site

#: Above the hooks' five seconds, far below the thirty that `Site.run` waits.
LIMIT_S = 20.0


@pytest.mark.parametrize("hook", HOOKS)
def test_a_capture_conf_that_does_not_answer(site: Site, hook: str) -> None:
    site.conf.unlink()
    os.mkfifo(site.conf)
    site.conf.chmod(0o644)
    done = site.run(hook, PROLOG, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "")


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
    done = site.run("task_prolog", PROLOG, user=USER, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "")
    site.conf.write_text(text)
    done = site.run("task_prolog", PROLOG, user=USER, limit=LIMIT_S)
    assert (done.returncode, done.stdout) == (3, "print theirs\n")
