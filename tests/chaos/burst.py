"""Many jobs end in one moment: how long until the last one has its verdict and its comment.

    python -m tests.chaos.burst [--jobs 500]

An array's tasks, 125 at once on each of four nodes, all wait to read from one FIFO; it is closed, and all of them end
with status 1. Hooks run for each, on this one machine: it makes all records itself. The array is waited for until every
task runs.
"""

from __future__ import annotations

import argparse
import os
import time

from tests.chaos.invariants import Findings, check, runs_of_slurm, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.client import ClusterError
from tests.cluster.processes import wait_until

__all__ = ["play"]

JOBS, NODES = 500, 4
CPUS = -(-JOBS // NODES)


def submit(scene: Scene, stream: Stream, jobs: int) -> None:
    gate = scene.cluster.home / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    job = scene.cluster.sbatch(f"#!/bin/sh\nread line <{gate}\nexit 1\n", f"--array=1-{jobs}", "--comment=mine")
    stream.comments[job] = "mine"


def running(scene: Scene) -> int:
    return len(scene.cluster.slurm("squeue", "-h", "-r", "-t", "R", "-o", "%i").stdout.split())


def open_gate(scene: Scene) -> None:
    """Every reader's open() returns when a writer comes, and its read when the writer goes. A task whose shell has not
    come to its read yet finds the gate by being opened again."""
    gate = scene.cluster.home / "gate"
    end = time.monotonic() + 120.0
    while running(scene) and time.monotonic() < end:
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads
            time.sleep(0.5)


def play(scene: Scene, jobs: int = JOBS, *, verified: bool = True) -> Findings:
    cluster, stream = scene.cluster, Stream(scene.cluster, scene.rng)
    cluster.start_daemon()
    submit(scene, stream, jobs)
    if not wait_until(lambda: running(scene) == jobs, 60.0 + jobs, every=1.0):
        raise ClusterError(f"only {running(scene)} of {jobs} tasks run")
    scene.say(f"{jobs} tasks run")
    opened = time.time()
    open_gate(scene)
    scene.say("all have ended")
    settled = wait_settled(cluster, 120.0 + 2 * jobs)
    done = time.time()
    scene.say("all have verdict and comment")
    if verified:
        settled &= wait_settled(cluster, 300.0, waiting=("queued", "written"))
    found = check(cluster, stream.comments)
    found.need(settled, "the daemon has not come to rest")
    ends = sorted(run.end for run in runs_of_slurm(cluster) if run.end is not None)
    found.counts["ended in the busiest second"] = max(ends.count(end) for end in set(ends))
    found.counts["s from the first end to the last"] = round(ends[-1] - ends[0])
    found.counts["s from the last end to the last comment"] = round(done - ends[-1])
    found.counts["s from the gate's opening to the last comment"] = round(done - opened)
    return found


def main() -> int:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=JOBS)

    return command("burst", __doc__, lambda scene, chosen: play(scene, chosen.jobs), options, cpus=CPUS)


if __name__ == "__main__":
    raise SystemExit(main())
