"""A forked reader and what it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from nccl_slurm.capture.child import answer_of


def test_what_a_reader_has_started_ends_with_it_even_if_it_is_stopped(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def work() -> str:
        child = subprocess.Popen(["sleep", "300"])
        os.kill(child.pid, signal.SIGSTOP)
        told.write_text(str(child.pid))
        child.wait()
        return "never"

    found = answer_of(work, limit_s=1.0, limit_bytes=100)
    assert found.why is not None
    pid = int(told.read_text())
    for _ in range(100):
        if not _runs(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} still runs")


def _runs(pid: int) -> bool:
    """A zombie that nobody waits for has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
