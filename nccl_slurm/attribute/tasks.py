"""Slurm's tasks of a run, and whether they are its ranks."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.sorts import Sorts
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
        return self._one_step if self._world is None else max(tasks) + 1 == self._world

    @cached_property
    def _one_step(self) -> bool:
        """Task 1 of a step that prepared data is not rank 1 of the one that trains."""
        return self._job is None or sum(step.id.rpartition(".")[2].isdecimal() for step in self._job.steps) <= 1
