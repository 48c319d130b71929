"""``task_exits`` of node records, as the SPANK plugin saw them → facts. Pure.

One fact for each abnormal end, one a node and step for all tasks that ended well.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from nccl_slurm.attribute import reading
from nccl_slurm.daemon.steps import OF_STEP
from nccl_slurm.model import READER_STEP, Fact, Gap, Job

__all__ = ["exit_facts"]

#: From a task's death to slurmstepd's look at the clock, where it waits for nothing else.
_SEEN_S = 0.05

_Record = Mapping[str, Any]


def exit_facts(job: Job, records: Mapping[str, _Record]) -> tuple[list[Fact], list[Gap]]:
    """``records`` by node name. No facts, and a gap, where task numbers can't be told apart: steps that accounting does
    not know of, and heterogeneous jobs, whose components each count from 0."""
    readers = {step.id.rpartition(".")[2] for step in job.steps if step.name == READER_STEP}
    told = {step for record in records.values() for step, _ in _by_step(record)} - readers
    known = {step.id.rpartition(".")[2] for step in job.steps}
    if any(_is_heterogeneous(record) for record in records.values()) and told:
        return [], [Gap("task exits", "a heterogeneous job: each component counts its tasks from 0")]
    if len(told) > 1 and not told <= known:
        return [], [Gap("task exits", f"of {len(told)} steps, which accounting does not tell apart")]
    facts = [
        fact
        for node, record in records.items()
        for step, exits in _by_step(record)
        if step in told
        for fact in _of_step(node, step, exits)
    ]
    return facts, []


def _is_heterogeneous(record: _Record) -> bool:
    hooks = (record["prolog"], record["epilog"])
    return any(hook["env"].get("SLURM_HET_JOB_ID", "0") not in ("", "0") for hook in hooks if hook)


def _by_step(record: _Record) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Steps of srun alone, by name; each with its exits in the order in which they were seen."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in record["task_exits"]:
        if one["step"] is not None and one["step"].isdecimal():
            found[one["step"]].append(one)
    return sorted(found.items())


def _of_step(node: str, step: str, exits: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """slurmstepd looks at one end after the other, each TaskEpilog in between: a task died between the end that was
    seen before its own and its own."""
    facts, well, before = [], [], None
    for one in exits:
        if one["exit"] == 0:
            well.append(one["rank"])
        else:
            facts.append(_abnormal(node, step, one, before))
        before = one["time"] if one["time"] is not None else before
    if well:
        text = f"{len(well)} {'task' if len(well) == 1 else 'tasks'} of step {step} ended with exit code 0"
        data = {"tasks": sorted(well), "step": step, OF_STEP: step, "exitcode": 0}
        facts.append(Fact(reading.TASK_ENDED, text, "slurm", "context", "root", host=node, data=data))
    return facts


def _abnormal(node: str, step: str, one: Mapping[str, Any], before: float | None) -> Fact:
    time, code = one["time"], one["exit"]
    late = max(0.0, time - before) if time is not None and before is not None else 0.0
    return Fact(
        kind=reading.TASK_ENDED,
        text=f"task {one['rank']} of step {step} {_words(code)}",
        producer="slurm",
        role="consequence" if code == -signal.SIGTERM else "cause",
        trust="root",
        host=node,
        time=time,
        uncertainty_s=None if time is None else _SEEN_S + late,
        data={"tasks": [one["rank"]], "step": step, OF_STEP: step, "exitcode": code, "pid": one["pid"]},
    )


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
