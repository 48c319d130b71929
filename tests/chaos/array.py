"""An array of thousands of tasks, of which one in a hundred fails: what it costs the daemon, whether each has its word.

    python -m tests.chaos.array [--tasks 10000] [--at-once 32]

The tasks run as Slurm starts them, with all hooks; Slurm's own work for them (a slurmstepd, prolog and epilog each) is
most of what the machine does. Told besides what `invariants` counts: tasks a minute, CPU seconds and memory of the
daemon, and how long after the last end the last comment was there.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tests.chaos.invariants import Findings, check, runs_of_slurm, wait_settled
from tests.chaos.scenario import Scene, command
from tests.cluster.client import ClusterError

__all__ = ["play"]

TASKS, AT_ONCE, ONE_IN = 10_000, 32, 100
#: Slurm's own defaults are 1,001 tasks an array and 10,000 jobs.
SLURM = ("MaxArraySize=50001", "MaxJobCount=60000", "MinJobAge=30", "MessageTimeout=60", "PrologEpilogTimeout=300")
SCRIPT = f"#!/bin/sh\n[ $((SLURM_ARRAY_TASK_ID % {ONE_IN})) != 0 ]\n"
_A_TASK_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def play(scene: Scene, tasks: int = TASKS, at_once: int = AT_ONCE, *, verified: bool = True) -> Findings:
    cluster = scene.cluster
    cluster.start_daemon()
    began = time.time()
    options = (f"--array=1-{tasks}%{at_once}", "--no-requeue", "--comment=mine", "--output=/dev/null")
    job = cluster.sbatch(SCRIPT, *options)
    _wait_ended(scene, tasks)
    scene.say("all have ended")
    settled = wait_settled(cluster, 300.0 + tasks / 10.0, every=10.0)
    done = time.time()
    scene.say("all have verdict and comment")
    cpu, peak = _of_daemon(cluster.daemon_pid())
    if verified:
        settled &= wait_settled(cluster, 300.0, waiting=("queued", "written"), every=10.0)
    found = check(cluster, {job: "mine"})
    found.need(settled, "the daemon has not come to rest")
    ended = [run.end for run in runs_of_slurm(cluster) if run.end is not None]
    found.need(len(ended) == tasks, f"{len(ended)} of {tasks} tasks have ended")
    found.counts["tasks a minute"] = round(60.0 * tasks / max(1.0, max(ended) - began))
    found.counts["s from the last end to the last comment"] = round(done - max(ended))
    found.counts["s of CPU of the daemon"] = round(cpu)
    found.counts["MB of the daemon at most"] = round(peak)
    return found


def _wait_ended(scene: Scene, tasks: int) -> None:
    """Raises ClusterError where Slurm makes no headway."""
    end, told = time.monotonic() + 300.0 + tasks * _A_TASK_S, 0
    while time.monotonic() < end:
        shown = scene.cluster.slurm("squeue", "-h", "-r", "-o", "%i", check=False)
        left = len(shown.stdout.split())
        if shown.returncode == 0 and not left:
            return
        if told != left // 1000:
            told = left // 1000
            scene.say(f"{left} tasks are left")
        time.sleep(2.0)
    raise ClusterError(f"{left} of {tasks} tasks are left")


def _of_daemon(pid: int | None) -> tuple[float, float]:
    """CPU seconds, those of its children that ended with it, and MB at most (proc(5))."""
    if pid is None:
        raise ClusterError("the daemon does not run")
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(map(int, words[11:15])) / _TICKS, int(status["VmHWM"].split()[0]) / 1000


def main() -> int:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tasks", type=int, default=TASKS)
        parser.add_argument("--at-once", type=int, default=AT_ONCE)

    def chosen(scene: Scene, arguments: argparse.Namespace) -> Findings:
        return play(scene, arguments.tasks, arguments.at_once)

    return command("array", __doc__, chosen, options, cpus=AT_ONCE, extra=SLURM)


if __name__ == "__main__":
    raise SystemExit(main())
