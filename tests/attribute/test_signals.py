"""Signals that others send are nobody's failure, whoever tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribute.texts import verdict

MPIRUN = "mpirun noticed that process rank {} with PID 812 on node n1 exited on signal {}.\n"
LOADER = "[rank{}]: RuntimeError: DataLoader worker (pid 8121) is killed by signal: {}. \n"
RAISED = "[1,2]<stderr>:Traceback (most recent call last):\n[1,2]<stderr>:ValueError: bad data\n"
LIMIT = "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-11-30T12:00:00 DUE TO TIME LIMIT ***\n"

#: name → log, class, (named, suspects).
LOGS: dict[str, tuple[str, str, tuple[list[int], list[int]]]] = {
    "mpirun, SIGTERM": (MPIRUN.format(0, "15 (Terminated)"), "unknown", ([], [])),
    "mpirun, SIGHUP": (MPIRUN.format(0, "1 (Hangup)"), "unknown", ([], [])),
    "mpirun, SIGSEGV": (MPIRUN.format(0, "11 (Segmentation fault)"), "process-signal", ([0], [])),
    "mpirun, SIGKILL": (MPIRUN.format(0, "9 (Killed)"), "process-signal", ([0], [])),
    "mpirun, SIGKILL at the limit": (LIMIT + MPIRUN.format(0, "9 (Killed)"), "preempt-cancel", ([], [])),
    "mpirun, after another rank's exception": (
        RAISED + MPIRUN.format(0, "15 (Terminated)"),
        "rank-exception",
        ([], [2]),
    ),
    "loader, SIGTERM": (LOADER.format(0, "Terminated"), "unknown", ([], [])),
    "loader, SIGKILL": (LOADER.format(0, "Killed"), "process-signal", ([], [0])),
}


@pytest.mark.parametrize("name", LOGS)
def test_whoever_was_ended_did_not_fail(tmp_path: Path, name: str) -> None:
    text, failure_class, who = LOGS[name]
    found = verdict(tmp_path, text)
    named, suspects = ([one["rank"] for one in found[key]] for key in ("culprits", "suspects"))
    assert (found["class"], (named, suspects)) == (failure_class, who)
