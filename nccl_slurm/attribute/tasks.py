"""Slurm's tasks of a run, and whether they are its ranks."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.hosts import expand
from nccl_slurm.model import Evidence, Fact, Job

__all__ = ["WORLD_MAX", "Tasks", "world_told"]

#: A job can print any world size; past this nothing is concluded from it.
WORLD_MAX = 1_000_000


def world_told(evidence: Evidence) -> int | None:
    """Number of ranks by the lines; None where they don't tell it, or what can't be."""
    told = evidence.world_size
    return told if told is not None and 0 < told <= WORLD_MAX else None


class Tasks:
    """``world``: number of ranks, None where it is not known."""

    def __init__(self, sorts: Sorts, job: Job | None, world: int | None) -> None:
        self._sorts, self._job, self._world = sorts, job, world

    @cached_property
    def ends(self) -> dict[int, list[Fact]]:
        """Task number → srun's lines about how it ended."""
        tasks: dict[int, list[Fact]] = defaultdict(list)
        for fact in self._sorts.where(lambda fact: fact.producer == "slurm"):
            for task in reading.numbers(fact.data.get("tasks")):
                tasks[task].append(fact)
        return dict(tasks)

    @cached_property
    def are_ranks(self) -> bool:
        """One rank a task: no torchrun between srun and the ranks, as many tasks as ranks, and no line that says
        otherwise (``srun -l`` labels with another rank behind them)."""
        if self._sorts.any(lambda fact: fact.producer == "elastic"):
            return False
        facts = self._sorts.having("task")
        labelled = [(fact, task) for fact in facts if (task := reading.number(fact.data, "task")) is not None]
        started = reading.task_numbers(self._sorts.of_kind(reading.TASK))
        tasks = set(self.ends) | {task for _, task in labelled} | started
        if not tasks or any(fact.rank not in (None, task) for fact, task in labelled):
            return False
        if self._world is not None:
            return max(tasks) + 1 == self._world
        agrees = any(fact.rank == task > 0 for fact, task in labelled)
        return self._one_step and (agrees or self._is_plain or self._one_a_gpu(max(tasks) + 1))

    @cached_property
    def _is_plain(self) -> bool:
        """A job that is known to have no GPUs, and of which Slurm and the machines alone speak: nothing in it counts
        ranks of its own. Output that was not read may hold what does."""
        told_by_others = self._sorts.any(lambda fact: fact.producer not in ("slurm", "kernel", "snapshot"))
        return self._job is not None and self._job.gpus == 0 and not told_by_others

    def _one_a_gpu(self, tasks: int) -> bool:
        """Where the number of ranks is not known: as many tasks as GPUs, or several on a node. One task a node may be
        a launcher of many ranks; what nodes the tasks were on no line may tell."""
        if self._job is not None and self._job.gpus == tasks:
            return True
        lines = list({id(fact): fact for facts in self.ends.values() for fact in facts}.values())
        crowds = any(_is_crowded(fact) for fact in lines)
        on: dict[str, set[int]] = defaultdict(set)
        for fact in [*lines, *self._sorts.of_kind(reading.TASK)]:
            node = fact.data.get("node") or fact.host
            if isinstance(node, str):
                on[node].update(reading.numbers(fact.data.get("tasks")), reading.task_numbers([fact]))
        return crowds or not on or any(len(tasks) > 1 for tasks in on.values())

    @cached_property
    def _one_step(self) -> bool:
        """Task 1 of a step that prepared data is not rank 1 of the one that trains."""
        return self._job is None or sum(step.id.rpartition(".")[2].isdecimal() for step in self._job.steps) <= 1


def _is_crowded(fact: Fact) -> bool:
    """srun's line tells of more tasks than nodes: ``n[1-2]: tasks 0,2-3``."""
    try:
        hosts = expand(str(fact.data.get("hosts", "")))
    except ValueError:
        return False
    return 0 < len(hosts) < len(reading.numbers(fact.data.get("tasks")))
