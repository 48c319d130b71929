"""Ends of tasks as slurmstepd told them: the first one of a step, with the clocks' uncertainty, and never a victim."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.attribute import blame
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.daemon.taskexits import exit_facts
from nccl_slurm.model import Evidence, Fact, NodeView, Verdict
from tests.attribute.scenarios import HANG, evidence, exception, job, nodes, task_exit
from tests.collect.test_shared import record

#: Rank → node.
HOST = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def run(ends: dict[int, tuple[int, float]], *words: Fact, clocks: float | None = 0.0, **more: Any) -> Evidence:
    """``ends``: rank → (exit, seconds after the first one)."""
    exits: dict[str, list[dict[str, Any]]] = {"n1": [], "n2": []}
    for rank, (code, after) in sorted(ends.items(), key=lambda item: item[1][1]):
        one = {"rank": rank, "exit": code, "pid": 7, "time": HANG + after, "start": None, "step": "0"}
        exits[HOST[rank]].append(one)
    facts, gaps = exit_facts(job(), {node: record(node=node, task_exits=told) for node, told in exits.items()})
    assert gaps == []
    views = [NodeView(**{**vars(view), "clock_error_s": clocks}) for view in nodes()]
    return evidence([*facts, *words], nodes=views, **more)


def verdict(found: Evidence) -> Verdict:
    return blame.attribute(found)


def named(found: Verdict) -> list[int | None]:
    return [one.rank for one in found.culprits]


def suspected(found: Verdict) -> list[int | None]:
    return [one.rank for one in found.suspects]


def test_ends_of_all_tasks_are_the_ranks_exits() -> None:
    found = run({0: (0, 0.0), 1: (7, 1.0), 2: (-15, 2.0), 3: (137, 2.1)}, world=4)
    assert Scene(found).exits == {0: 0, 1: 7, 2: -15, 3: -9}
    assert Scene(run({0: (0, 0.0), 1: (7, 1.0)}, world=16)).exits == {}  # torchrun's agents, not ranks


def test_the_first_signal_of_a_step_is_suspected_before_the_later_one() -> None:
    ends = {0: (-15, 20.0), 1: (-15, 20.1), 2: (-11, 10.0), 3: (-15, 20.0)}
    assert named(verdict(run(ends, world=4))) == [2]
    two = {**ends, 1: (-11, 0.0)}
    assert [*named(verdict(run(two, world=4))), *suspected(verdict(run(two, world=4)))] == [1]


def test_no_order_beyond_the_clocks() -> None:
    two = {0: (-15, 20.0), 1: (-11, 0.0), 2: (-11, 10.0), 3: (-15, 20.0)}
    for clocks in (None, 6.0):
        found = verdict(run(two, world=4, clocks=clocks))
        assert named(found) == [] and sorted(map(int, filter(None, suspected(found)))) == [1, 2]


def test_no_order_where_one_end_was_seen_after_another_on_the_same_node() -> None:
    """A TaskEpilog of ten seconds may lie between two deaths of one moment."""
    found = verdict(run({0: (-11, 0.0), 1: (-11, 10.0), 2: (-15, 20.0), 3: (-15, 20.0)}, world=4))
    assert named(found) == [] and sorted(map(int, suspected(found))) == [0, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("clocks", [0.0, None])
def test_killed_long_after_another_failed_is_no_lead(clocks: float | None) -> None:
    """srun's --kill-on-bad-exit: SIGTERM, and SIGKILL after KillWait to those who ignore it."""
    ends = {0: (-9, 30.0), 1: (-9, 30.01), 2: (1, 0.0), 3: (-9, 30.0)}
    found = verdict(run(ends, exception(None, line=5), world=4, clocks=clocks))
    assert set(named(found) + suspected(found)) <= {2}
    exits = Scene(run(ends, world=4, clocks=clocks)).exits
    assert -9 not in exits.values()
    assert (exits.get(1) == -15) == (clocks == 0.0)


def test_all_killed_at_once_accuses_nobody() -> None:
    """scancel -s KILL, or an administrator: who was seen first was not the first to fail."""
    ends = {0: (-9, 0.0), 1: (-9, 0.001), 2: (-9, 0.002), 3: (-9, 0.003)}
    for clocks in (0.0, 0.01, None):
        assert named(verdict(run(ends, world=4, clocks=clocks))) == []
    one_by_one = {rank: (-9, rank * 10.0) for rank in range(4)}  # with a slow TaskEpilog
    assert named(verdict(run(one_by_one, world=4))) == []


def test_sruns_own_line_tells_whether_the_step_was_ending() -> None:
    ends = {0: (-9, 0.5), 1: (1, 0.0), 2: (0, 0.0), 3: (0, 0.0)}
    words = [task_exit("n1", "1", "Exited with exit code 1", 10, exitcode=1), task_exit("n1", "0", "Killed", 12)]
    assert Scene(run(ends, *words, world=4)).exits[0] == -15
    assert Scene(run(ends, task_exit("n1", "0", "Killed", 12), world=4)).exits[0] == -9


def test_a_cancelled_run_stays_one() -> None:
    ends = {0: (-15, 0.0), 1: (-15, 0.001), 2: (-15, 0.0), 3: (-9, 2.5)}
    found = verdict(run(ends, world=4, job=job("CANCELLED")))
    assert (found.failure_class, named(found), suspected(found)) == ("preempt-cancel", [], [])
