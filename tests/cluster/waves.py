"""Runs a job over each condition, on whichever node is free, and tells what became of job and node."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from tests.cluster.conditions import Condition
from tests.cluster.processes import wait_until
from tests.cluster.spoiled import Node

__all__ = ["Fate", "job_facts", "node_facts", "run_all", "wait_settled"]

#: Nothing of ours waits for more than about 5 s in a prolog, in an epilog, and in a TaskProlog for each of two tasks.
SETTLED_S = 90.0
RECORD_S, NO_RECORD_S = 120.0, 5.0


@dataclass
class Fate:
    """Of one node. ``job`` and ``next_job`` (on the mended node): state, exit code, restarts. ``state``: of the node,
    with its drain reason (None: it has none). ``seconds`` from submit to idle node. ``left``: processes of ours that
    still wait then. ``captured``: hooks closed the next job's run."""

    node: Node
    condition: Condition
    job: tuple[str, str, str] = ("", "", "")
    state: tuple[str, str | None] = ("", None)
    seconds: float = SETTLED_S
    left: int = 0
    record: bool = False
    next_job: tuple[str, str, str] = ("", "", "")
    captured: bool = False

    def submit(self) -> str:
        of = self.condition
        sbatch = str(self.node.cluster.slurm_bin / "sbatch")
        command = ["env", *of.environment, sbatch, "--parsable", "-w", self.node.name, *of.options]
        return self.node.cluster.run(command, user="alice", stdin=of.script).stdout.strip()

    def look(self, job: str, seconds: float) -> None:
        self.seconds, self.job, self.state = seconds, job_facts(self.node, job), node_facts(self.node)
        self.left = len(self.node.hooks())

    def has_record(self, job: str) -> bool:
        self.record = self.node.records(job) != []
        return self.record

    def has_ended(self, job: str) -> bool:
        return self.has_record(job) or not self.node.hooks()

    def follow_up(self, job: str) -> None:
        self.next_job = job_facts(self.node, job)
        self.captured = any((run / "closed").exists() for run in self.node.runs(job))


def run_all(nodes: Sequence[Node], conditions: Sequence[Condition]) -> list[Fate]:
    """Each node takes the next condition when it has done with one: all of it mostly waits."""
    waiting: SimpleQueue[Condition] = SimpleQueue()
    for condition in conditions:
        waiting.put(condition)

    def work(node: Node) -> list[Fate]:
        fates: list[Fate] = []
        while True:
            try:
                fates.append(_run(node, waiting.get_nowait()))
            except Empty:
                return fates

    with ThreadPoolExecutor(len(nodes)) as pool:
        return [fate for fates in pool.map(work, nodes) for fate in fates]


def _run(node: Node, condition: Condition) -> Fate:
    one = Fate(node, condition)
    with ExitStack() as stack:
        condition.spoil(node, stack)
        job = one.submit()
        (seconds,) = wait_settled(node, [job])
        one.look(job, seconds)
        _await_record(one, job)
    node.mend()
    _heal(node)
    job = node.cluster.sbatch("#!/bin/sh\nsrun true\n", "-w", node.name)
    wait_settled(node, [job])
    one.follow_up(job)
    node.mend()
    _heal(node)
    return one


def _await_record(one: Fate, job: str) -> None:
    """Where it must come; else the end of the worker: what hangs is not waited for."""
    if one.condition.record:
        wait_until(lambda: one.has_record(job), RECORD_S, every=0.5)
    wait_until(lambda: one.has_ended(job), NO_RECORD_S, every=0.5)


def _heal(node: Node) -> None:
    """A condition that drained the node is told by its own test, not by those that follow there."""
    if node_facts(node) != ("IDLE", None):
        node.cluster.slurm("scancel", f"--nodelist={node.name}", check=False)
        node.cluster.slurm("scontrol", "update", f"nodename={node.name}", "state=resume", check=False)


def wait_settled(node: Node, jobs: Sequence[str], limit_s: float = SETTLED_S) -> list[float]:
    """When each job had left Slurm's queue, its epilogs done (seconds from now on); the limit for one that did not."""
    began, gone = time.monotonic(), dict.fromkeys(jobs, limit_s)

    def all_gone() -> bool:
        done = node.cluster.slurm("squeue", "-h", "-r", "-o", "%A %F", check=False)
        if done.returncode:  # 24.11's ended by SIGPIPE once: slurmctld hung up on it, with 200 jobs at once
            return False
        asked = set(done.stdout.split())
        for job in set(jobs) - asked:
            gone[job] = min(gone[job], time.monotonic() - began)
        return not asked & set(jobs)

    wait_until(all_gone, limit_s, every=0.4)
    return [gone[job] for job in jobs]


def job_facts(node: Node, job: str) -> tuple[str, str, str]:
    shown = node.cluster.slurm("scontrol", "-o", "show", "job", job).stdout
    state, code, restarts = (re.search(rf"\b{key}=(\S+)", shown) for key in ("JobState", "ExitCode", "Restarts"))
    assert state and code and restarts
    return state[1], code[1], restarts[1]


def node_facts(node: Node) -> tuple[str, str | None]:
    shown = node.cluster.node(node.name)
    return shown["State"], shown.get("Reason")
