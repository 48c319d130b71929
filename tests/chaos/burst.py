"""Many jobs end in one moment: how long until the last one has its verdict and its comment.

    python -m tests.chaos.burst [--jobs 500] [--hooks]

An array's tasks, 125 at once on each of four nodes, all wait to read from one FIFO, and when the last one does, it is
closed: all of them end with status 1. Without ``--hooks`` they end at once: on this one machine the hooks of 500 jobs
would be what is measured. No node record comes then, and the daemon waits `settle_s` for them (5 s here).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

from tests.chaos.invariants import Findings, check, runs_of_slurm, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.client import ClusterError

__all__ = ["play"]

JOBS, NODES = 500, 4
CPUS = -(-JOBS // NODES)
#: Hundreds of processes begin and end at once on one machine: a slurmd that is slow is no dead one.
SLURM = ("MinJobAge=30", "SlurmdTimeout=600", "MessageTimeout=60", "PrologEpilogTimeout=300")


def submit(scene: Scene, stream: Stream, jobs: int) -> None:
    gate = scene.cluster.home / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    script, options = (
        f"#!/bin/sh\n: >{gate}.$SLURM_JOB_ID\nread line <{gate}\nexit 1\n",
        ("--no-requeue", "--comment=mine"),
    )
    job = scene.cluster.sbatch(script, f"--array=1-{jobs}", *options)
    stream.comments[job] = "mine"


def at_the_gate(scene: Scene) -> int:
    return len(list(scene.cluster.home.glob("gate.*")))


def gather(scene: Scene, jobs: int) -> int:
    """Waits until all are at the gate. Where machine and credentials' time are short, Slurm never launches a few of
    hundreds: after a minute without a new one those are cancelled. Returns how many."""
    there, since = -1, time.monotonic()
    while there < jobs and time.monotonic() - since < 60.0:
        if at_the_gate(scene) != there:
            there, since = at_the_gate(scene), time.monotonic()
        time.sleep(1.0)
    if there < 0.9 * jobs:
        raise ClusterError(f"only {there} of {jobs} tasks run")
    for job in scene.cluster.slurm("squeue", "-h", "-r", "-o", "%A").stdout.split():
        if not (scene.cluster.home / f"gate.{job}").exists():
            scene.cluster.slurm("scancel", job)
    return jobs - there


def open_gate(scene: Scene) -> None:
    """Every reader's open() returns when a writer comes, and its read when the writer goes. A task that was between its
    mark and its read finds the gate opened again."""
    gate = scene.cluster.home / "gate"
    end = time.monotonic() + 300.0
    while not all_ended(scene) and time.monotonic() < end:
        with contextlib.suppress(OSError):  # nobody reads
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.5)


def all_ended(scene: Scene) -> bool:
    shown = scene.cluster.slurm("squeue", "-h", "-t", "R,PD", "-o", "%i", check=False)
    return shown.returncode == 0 and not shown.stdout.split()


def play(scene: Scene, jobs: int = JOBS, *, hooks: bool = False, verified: bool = True) -> Findings:
    cluster, stream = scene.cluster, Stream(scene.cluster, scene.rng)
    if not hooks:
        cluster.capture_conf.unlink()  # each hook ends at once
    cluster.start_daemon()
    submit(scene, stream, jobs)
    cancelled = gather(scene, jobs)
    scene.say(f"{jobs - cancelled} tasks wait at the gate, {cancelled} that Slurm did not launch are cancelled")
    opened = time.time()
    open_gate(scene)
    scene.say("all have ended")
    settled = wait_settled(cluster, 120.0 + 2 * jobs)
    done = time.time()
    scene.say("all have verdict and comment")
    if verified:
        settled &= wait_settled(cluster, 300.0, waiting=("queued", "written"))
    found = check(cluster, stream.comments, lacking=() if hooks else stream.comments)
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
        parser.add_argument("--hooks", action="store_true")

    def chosen(scene: Scene, arguments: argparse.Namespace) -> Findings:
        return play(scene, arguments.jobs, hooks=arguments.hooks)

    return command("burst", __doc__, chosen, options, cpus=CPUS, extra=SLURM)


if __name__ == "__main__":
    raise SystemExit(main())
