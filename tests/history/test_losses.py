"""Which lost runs speak against whom, and what does not count."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.history.losses import Tally, Worked, tally_of
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.thresholds import load_thresholds
from nccl_slurm.model import CLASSES
from tests.history.fleets import DAY, START, Run, fleet, lost, well

LIMITS = load_thresholds()
PAIR = ("a", "b")
EIGHT = tuple(f"n{number}" for number in range(8))


def tally(machines: list[Machine], begin: float = 0.0, end: float = 90.0) -> Tally:
    return tally_of([Worked(machine, LIMITS) for machine in machines], START + begin * DAY, START + end * DAY, LIMITS)


def evidence(runs: list[Run], nodes: tuple[str, ...] = (), **data: Any) -> dict[str, float]:
    pool = tally(fleet(runs, nodes, **data)).pool()
    return {name: pool.evidence(name) for name in sorted(pool.against)}


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        pytest.param([lost(1, "a", named="a")], {"a": 1.0}, id="named, alone"),
        pytest.param([lost(1, "a")], {"a": 1.0}, id="alone"),
        pytest.param([lost(1, "a", "b", named="b")], {"b": 1.0}, id="named of two"),
        pytest.param([lost(1, "a", "b")], {"a": 0.5, "b": 0.5}, id="nobody named of two"),
        pytest.param([lost(1, "a", "b", "c")], {"a": 0.25, "b": 0.25, "c": 0.25}, id="three count as four"),
        pytest.param([lost(1, *EIGHT)], dict.fromkeys(EIGHT, 0.125), id="nobody named of eight"),
        pytest.param([well(1, "a", "b")], {}, id="well"),
        pytest.param([lost(91, "a")], {}, id="after the window"),
        pytest.param([lost(-1, "a")], {}, id="before the window"),
    ],
)
def test_a_lost_run_is_divided_by_those_it_may_be_of(runs: list[Run], wanted: dict[str, float]) -> None:
    assert evidence(runs) == wanted


def test_64_nodes_are_a_64th_and_more_are_nothing() -> None:
    assert set(evidence([lost(1, *map(str, range(64)))]).values()) == {1 / 64}
    assert evidence([lost(1, *map(str, range(65)))]) == {}


@pytest.mark.parametrize("failure_class", CLASSES)
def test_only_classes_that_speak_of_machines_count(failure_class: str) -> None:
    counts = failure_class in LIMITS.classes
    assert evidence([lost(1, "a", named="a", failure_class=failure_class)]) == ({"a": 1.0} if counts else {})


def test_programs_and_users_speak_against_no_machine() -> None:
    innocent = {"rank-exception", "cuda-oom", "gpu-app-fault", "collective-missing-rank", "unknown", "preempt-cancel"}
    assert not innocent & LIMITS.classes


def test_several_that_one_verdict_names_share_it() -> None:
    machines = fleet([lost(1, "a", "b", "c")])
    for machine in machines[:2]:
        machine.events[0].data["named"] = True  # type: ignore[index]
    pool = tally(machines).pool()
    assert {name: pool.evidence(name) for name in pool.against} == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(
    ("hours", "wanted"), [((0, 1, 2), 1.0), ((0, 5.9), 1.0), ((0, 6.1), 2.0), ((0, 1, 6.5, 7), 2.0)]
)
def test_a_node_that_fails_run_after_run_counts_once_an_episode(hours: tuple[float, ...], wanted: float) -> None:
    assert evidence([lost(1 + hour / 24, "a", named="a") for hour in hours]) == {"a": wanted}


def test_one_owners_failures_count_once_for_each_node() -> None:
    """A program that fails again and again is no word against the node that it always gets."""
    runs = [lost(day, "a") for day in range(1, 20)]
    assert evidence(runs, user="alice") == {"a": 1.0}
    assert evidence([lost(1, "a", "b"), lost(2, "b", "c")], user="alice") == {"a": 0.5, "b": 0.5, "c": 0.5}
    assert evidence(runs) == {"a": 19.0}


def test_without_a_user_tasks_of_one_array_are_one_owners() -> None:
    machines = fleet([lost(1, "a"), lost(2, "a")])
    for number, event in enumerate(machines[0].events):
        event.data["job"] = f"42_{number}"  # type: ignore[index]
    assert tally(machines).pool().evidence("a") == 1.0


@pytest.mark.parametrize(("apart_min", "wanted"), [(1, {}), (4.9, {}), (11, {"a": 1.0, "b": 1.0, "c": 1.0})])
def test_losses_of_several_jobs_at_once_are_a_site_event(apart_min: float, wanted: dict[str, float]) -> None:
    runs = [lost(1 + at * apart_min / 1440, node, named=node) for at, node in enumerate("abc")]
    assert evidence(runs) == wanted


def test_two_at_once_may_be_chance_and_large_fleets_have_more_of_it() -> None:
    assert evidence([lost(1, node, named=node) for node in "ab"]) == {"a": 1.0, "b": 1.0}
    many = tuple(map(str, range(500)))
    assert evidence([lost(1, node, named=node) for node in many[:4]], many) == dict.fromkeys(many[:4], 1.0)
    assert evidence([lost(1, node, named=node) for node in many[:5]], many) == {}


def test_hours_are_kept_by_size_of_the_run() -> None:
    hours = tally(fleet([well(1, "a"), well(2, "a", "b"), well(3, "a", "b", "c"), lost(4, "a")])).hours
    assert {name: dict(mine) for name, mine in hours.items()} == {
        "a": {1: 24.0, 2: 12.0, 4: 12.0},
        "b": {2: 12.0, 4: 12.0},
        "c": {4: 12.0},
    }


def test_runs_that_do_not_tell_how_long_they_lasted_count_as_the_median() -> None:
    machines = fleet([well(1, "a"), well(2, "a"), well(3, "a"), well(4, "b")])
    del machines[1].events[0].data["lasted"]  # type: ignore[attr-defined]
    assert tally(machines).hours["b"] == {1: 12.0}
    machines[1].events[0].data["count"] = 5  # type: ignore[index]
    assert tally(machines).hours["b"] == {1: 60.0}


def test_without_any_duration_runs_are_counted() -> None:
    machines = fleet([well(1, "a"), well(2, "a"), well(3, "b")])
    for machine in machines:
        for event in machine.events:
            del event.data["lasted"]  # type: ignore[attr-defined]
    assert {name: dict(mine) for name, mine in tally(machines).hours.items()} == {"a": {1: 2.0}, "b": {1: 1.0}}


def test_damaged_data_is_no_crash() -> None:
    machines = fleet([lost(1, "a"), well(2, "a")], nodes=("b",))
    machines[0].events[0].data.update(nodes="x", lasted="long", count=[], job=None, run=[])  # type: ignore[attr-defined]
    machines[0].events[1].data.update(nodes=10**30, lasted=-1, **{"class": []})  # type: ignore[attr-defined]
    found = tally(machines)
    assert found.pool().evidence("a") == 1.0
    assert dict(found.hours["a"]) == {1: 2.0}


def test_losses_that_a_flagged_machine_explains_accuse_nobody_else() -> None:
    found = tally(fleet([lost(1, *PAIR), lost(2, "b", "c")]))
    pool = found.pool(frozenset({"a"}))
    assert {name: pool.evidence(name) for name in pool.against} == {"b": 0.5, "c": 0.5}
    assert [len(losses) for losses in found.against({"a"}).values()] == [1]
