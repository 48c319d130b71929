"""Runs a job over each condition, four nodes at a time, and tells what became of job and node."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.cluster.conditions import Condition
from tests.cluster.processes import wait_until
from tests.cluster.spoiled import Node

__all__ = ["Fate", "job_facts", "node_facts", "run_wave", "wait_settled"]

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


def run_wave(nodes: Sequence[Node], conditions: Sequence[Condition]) -> list[Fate]:
    """The first conditions, one a node."""
    fates = [Fate(node, condition) for node, condition in zip(nodes, conditions, strict=False)]
    with ExitStack() as stack:
        for one in fates:
            one.condition.spoil(one.node, stack)
        jobs = [one.submit() for one in fates]
        for one, job, seconds in zip(fates, jobs, wait_settled(nodes[0], jobs), strict=True):
            one.look(job, seconds)
        _await_records(list(zip(fates, jobs, strict=True)))
    for one in fates:
        one.node.mend()
    jobs = [one.node.cluster.sbatch("#!/bin/sh\nsrun true\n", "-w", one.node.name) for one in fates]
    wait_settled(nodes[0], jobs)
    for one, job in zip(fates, jobs, strict=True):
        one.follow_up(job)
        one.node.mend()
    return fates


def _await_records(pairs: Sequence[tuple[Fate, str]]) -> None:
    """Those that must come, and for the others the end of their workers: what hangs is not waited for."""
    wait_until(lambda: all(one.has_record(job) for one, job in pairs if one.condition.record), RECORD_S, every=0.2)
    wait_until(lambda: [one.has_ended(job) for one, job in pairs].count(False) == 0, NO_RECORD_S, every=0.2)


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

    wait_until(all_gone, limit_s, every=0.3)
    return [gone[job] for job in jobs]


def job_facts(node: Node, job: str) -> tuple[str, str, str]:
    shown = node.cluster.slurm("scontrol", "-o", "show", "job", job).stdout
    state, code, restarts = (re.search(rf"\b{key}=(\S+)", shown) for key in ("JobState", "ExitCode", "Restarts"))
    assert state and code and restarts
    return state[1], code[1], restarts[1]


def node_facts(node: Node) -> tuple[str, str | None]:
    shown = node.cluster.node(node.name)
    return shown["State"], shown.get("Reason")
