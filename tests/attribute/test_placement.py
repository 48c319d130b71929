from __future__ import annotations

from dataclasses import replace

import pytest

from nccl_slurm.attribute.placement import placed
from nccl_slurm.model import Fact, Rank
from tests.attribute.scenarios import evidence, fact, job


def task(procid: int, host: str, local: int, *, step: str = "0", pid: int = 100) -> Fact:
    data = {"step": step, "procid": procid, "localid": local, "pid": pid + procid}
    return fact("slurm.task", f"task {procid} started", "context", host=host, file=f"{host}/task", data=data)


STARTED = [task(0, "n1", 0), task(1, "n1", 1), task(2, "n2", 0), task(3, "n2", 1)]


_Row = tuple[int, str | None, int | None, int | None]


def where(ranks: list[Rank], facts: list[Fact], world: int = 4) -> tuple[list[_Row], list[str]]:
    found = placed(evidence(facts, ranks, world=world))
    rows = [(row.rank, row.host, row.local_rank, row.pid) for row in found.ranks]
    return rows, [f"{gap.source}: {gap.why}" for gap in found.gaps]


def test_tasks_place_ranks_that_left_nothing_else() -> None:
    rows, gaps = where([Rank(1, pid=7)], STARTED)
    assert rows == [(0, "n1", 0, 100), (1, "n1", 1, 7), (2, "n2", 0, 102), (3, "n2", 1, 103)]
    assert gaps == []


def test_a_rank_that_claims_another_node_than_its_task_is_a_gap() -> None:
    rows, gaps = where([Rank(1, host="n2", local_rank=1)], STARTED)
    assert rows[1] == (1, "n2", 1, 101)
    assert gaps == ["rank 1: host: n2 by its lines, n1 by Slurm's task"]


@pytest.mark.parametrize(
    "facts",
    [
        STARTED[:3],  # fewer tasks than ranks
        [replace(one, data={**one.data, "step": "batch"}) for one in STARTED],
        [*STARTED, fact("elastic.closing", "Sending process 7 closing signal SIGTERM")],  # torchrun
    ],
    ids=["three-of-four", "batch", "torchrun"],
)
def test_tasks_that_are_no_ranks_place_none(facts: list[Fact]) -> None:
    assert where([], facts) == ([], [])


def test_ranks_on_one_gpu_are_told_of() -> None:
    ranks = [
        Rank(0, host="n1", gpu="0000:a1:00"),
        Rank(1, host="n1", gpu="0000:a1:00"),
        Rank(2, host="n2", gpu="0000:a1:00"),
    ]
    _, gaps = where([*ranks, Rank(3, gpu="0000:a1:00"), Rank(4, gpu="0000:a1:00")], [])
    assert gaps == ["ranks 0, 1: all on GPU 0000:a1:00 of n1: what the kernel says of it fits any of them"]


def test_a_job_of_several_steps_has_no_task_that_is_a_rank_for_sure() -> None:
    from nccl_slurm.model import Step

    steps = tuple(Step(f"42.{n}", "python", "FAILED", 1, 0, ("n1", "n2")) for n in (0, 1))
    assert placed(evidence(STARTED, job=job(steps=steps))).ranks == []
