from __future__ import annotations

from typing import Any

from nccl_slurm.daemon.taskexits import exit_facts
from nccl_slurm.model import READER_STEP, Job, Step
from tests.collect.test_shared import record

JOB = Job("42", 42, "c", nodes=("n1", "n2"))


def ended(rank: int, code: int, at: float | None = 100.0, step: str | None = "0") -> dict[str, Any]:
    return {"rank": rank, "exit": code, "pid": 7, "time": at, "start": 1.0, "step": step}


def told(*exits: dict[str, Any], job: Job = JOB, **more: Any) -> tuple[list[tuple[str, str, list[int]]], list[str]]:
    facts, gaps = exit_facts(job, {"n1": record(task_exits=list(exits), **more)})
    assert all((fact.host, fact.trust, fact.producer) == ("n1", "root", "slurm") for fact in facts)
    return [(fact.role, fact.text, fact.data["tasks"]) for fact in facts], [gap.why for gap in gaps]


def test_one_fact_for_each_abnormal_end_and_one_for_the_rest() -> None:
    facts, gaps = told(ended(2, 0), ended(0, 0), ended(1, 7), ended(3, -9), ended(4, -15), ended(5, -64))
    assert gaps == []
    assert facts == [
        ("cause", "task 1 of step 0 ended with exit code 7", [1]),
        ("cause", "task 3 of step 0 was ended by SIGKILL", [3]),
        ("consequence", "task 4 of step 0 was ended by SIGTERM", [4]),
        ("cause", "task 5 of step 0 was ended by SIGRTMAX", [5]),
        ("context", "2 tasks of step 0 ended with exit code 0", [0, 2]),
    ]


def test_an_end_that_was_seen_after_another_may_be_as_old_as_that() -> None:
    """slurmstepd runs the TaskEpilog of one task before it looks at the next."""
    facts, _ = exit_facts(JOB, {"n1": record(task_exits=[ended(0, 1, 100.0), ended(1, 1, 107.0), ended(2, 1, None)])})
    assert [(fact.time, fact.uncertainty_s) for fact in facts] == [(100.0, 0.05), (107.0, 7.05), (None, None)]


def test_batch_scripts_are_no_tasks_of_a_step() -> None:
    assert told(ended(0, 1, step="batch"), ended(0, 1, step=None)) == ([], [])


def test_steps_that_accounting_does_not_tell_apart_are_a_gap() -> None:
    exits = (ended(0, 1), ended(0, 1, step="1"))
    assert told(*exits) == ([], ["of 2 steps, which accounting does not tell apart"])
    steps = tuple(Step(f"42.{number}", "x", "FAILED", 1, 0) for number in range(2))
    assert len(told(*exits, job=Job("42", 42, "c", steps=steps))[0]) == 2


def test_components_of_a_heterogeneous_job_each_count_from_zero() -> None:
    prolog = {"time": 1.0, "boot_id": None, "env": {"SLURM_HET_JOB_ID": "42"}}
    assert told(ended(0, 1), prolog=prolog) == ([], ["a heterogeneous job: each component counts its tasks from 0"])
    assert told(prolog=prolog) == ([], [])


def test_a_step_of_ours_is_none_of_the_jobs() -> None:
    """`nccl-slurm watch` reads by a step: its tasks are no ranks, and one step beside it is still the only one."""
    steps = (Step("42.0", "python", "FAILED", 1, 0), Step("42.1", READER_STEP, "COMPLETED", 0, 0))
    job = Job("42", 42, "c", nodes=("n1",), steps=steps)
    facts, gaps = told(ended(1, 7), ended(0, 0, step="1"), job=job)
    assert gaps == [] and facts == [("cause", "task 1 of step 0 ended with exit code 7", [1])]
