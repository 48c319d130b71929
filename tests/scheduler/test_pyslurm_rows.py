"""Rows of pyslurm 25.11.2 → nouns."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.scheduler.pyslurm_rows import Doubtful, comment_states, live_jobs, release_of
from tests.scheduler.stand_in import pyslurm as stand_in


def job(**changes: Any) -> dict[str, Any]:
    return {**stand_in._JOB, "gres": {"gpu": 8}, **changes}


@pytest.mark.parametrize(
    ("changes", "shown", "task"),
    [
        ({}, "7", None),
        ({"array_id": 9, "array_task_id": 3}, "9_3", 3),
        ({"array_id": 9}, "9_0", 0),
        ({"array_id": 9, "array_tasks_waiting": "1-9"}, "9_[1-9]", None),
        ({"array_id": 9, "array_tasks_waiting": "1-9", "array_tasks_parallel": 2}, "9_[1-9%2]", None),
        ({"heterogeneous_id": 9}, "9+0", None),
        ({"heterogeneous_id": 9, "heterogeneous_offset": 1}, "9+1", None),
    ],
)
def test_ids(changes: dict[str, Any], shown: str, task: int | None) -> None:
    (found,) = live_jobs([job(**changes)], gpus_tracked=True)
    assert (found.id, found.array_task_id) == (shown, task)
    assert found.het_offset == (int(shown[-1]) if "+" in shown else None)


@pytest.mark.parametrize(
    ("gres", "tracked", "gpus"),
    [
        (None, True, None),
        ({}, True, 0),
        ({}, False, None),
        ({"gpu": 8, "gpu:h100": 8}, True, 8),
        ({"gpu:a": 2, "gpu:b": 1}, True, 3),
    ],
)
def test_gpus(gres: dict[str, int] | None, tracked: bool, gpus: int | None) -> None:
    (found,) = live_jobs([job(gres=gres)], gpus_tracked=tracked)
    assert found.gpus == gpus


def test_ends() -> None:
    ended = job(state="FAILED", exit_code=3, derived_exit_code=7, derived_exit_code_signal=9, state_reason="None")
    (found,) = live_jobs([ended], gpus_tracked=True)
    assert (found.exit, found.derived_exit, found.end, found.reason) == ("3:0", "7:9", 1796054401.0, None)


def test_a_job_without_a_batch_script_has_no_paths() -> None:
    (found,) = live_jobs([job(is_batch_job=False, standard_output=None)], gpus_tracked=True)
    assert (found.stdout, found.stderr) == (None, None)


@pytest.mark.parametrize("path", ["/a/%N.out", "/a/b\\c", "slurm.out", "", None, "/" + "a" * 1010])
def test_a_path_that_may_be_another_is_not_believed(path: str | None) -> None:
    with pytest.raises(Doubtful, match="job 7"):
        live_jobs([job(standard_output=path)], gpus_tracked=True)


def test_comments_of_the_jobs_asked_for_alone() -> None:
    row = {**stand_in._RECORD, "id": 7, "comment": None, "admin_comment": "a"}
    states = comment_states([row, {**row, "id": 8}, {**row, "id": 9, "partition": None}], [7, 9])
    assert set(states) == {7}
    assert (states[7].comment, states[7].admin_comment) == ("", "a")


@pytest.mark.parametrize(
    ("version", "release"),
    [("25.11.2", (25, 11)), ("22.5.3", (22, 5)), ("26.5.0rc1", (26, 5)), ("x", None), ("", None)],
)
def test_releases(version: str, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release
