"""Records of a run with several steps: what a node wrote for its only step is told to be of that one.

A node that had several tells them apart itself (`parse.steps`); one that had a single step knows of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccl_slurm.attribute import reading
from nccl_slurm.model import Fact

__all__ = ["OF_STEP", "told_apart"]

#: Key of ``Fact.data``, as `parse.steps` has it.
OF_STEP = "of_step"

_Record = Mapping[str, Any]


def told_apart(records: Mapping[str, _Record]) -> dict[str, _Record]:
    """The records by node, those of a single step with ``step`` in their ranks and ``of_step`` in their facts; as they
    are where the run had one step."""
    steps = {node: _steps(record) for node, record in records.items()}
    if len(set().union(*steps.values())) < 2:
        return dict(records)
    return {
        node: _of(next(iter(steps[node])), record) if len(steps[node]) == 1 else record
        for node, record in records.items()
    }


def _steps(record: _Record) -> set[str]:
    """Of srun's, by the tasks that task_prolog saw on the node."""
    started = (fact["data"].get("step") for fact in record["facts"] if fact["kind"] == reading.TASK)
    return {step for step in started if isinstance(step, str) and step.isdecimal()}


def _of(step: str, record: _Record) -> _Record:
    facts = [{**fact, "data": {OF_STEP: step, **fact["data"]}} for fact in record["facts"] if fact["trust"] == "job"]
    facts += [fact for fact in record["facts"] if fact["trust"] != "job"]
    if record["world_size"] is not None:
        data = {OF_STEP: step, "world_size": record["world_size"]}
        facts.append(Fact(reading.STEP_WORLD, f"step {step}", "slurm", "context", "job", data=data).to_json())
    ranks = [{**rank, "step": rank.get("step") or step} for rank in record["ranks"]]
    return {**record, "facts": facts, "ranks": ranks, "world_size": None}
