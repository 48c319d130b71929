"""The seven signals, each from the events of one machine."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.signals import Signal, out_of_service, signals
from nccl_slurm.history.thresholds import SIGNALS, load_thresholds
from tests.history.fleets import DAY, START, event

LIMITS = load_thresholds()
NOW = START + 28 * DAY


def told(events: list[MachineEvent], excluded_since: float | None = None) -> dict[str, Signal]:
    machine = Machine("i-1", "n1", "compute", START, tuple(sorted(events, key=lambda one: one.time)))
    return {one.name: one for one in signals(machine, NOW, LIMITS, excluded_since=excluded_since)}


def job(day: float, nodes: int, failure_class: str | None = None, *, named: bool = False, **more: int) -> MachineEvent:
    data: dict[str, Any] = {"job": str(day), "run": 1, "nodes": nodes, **more}
    if failure_class is not None:
        data |= {"class": failure_class, "named": named}
    return MachineEvent(START + day * DAY, "job", "failed" if failure_class else "well", "daemon", data=data)


def xid(day: float, code: int, failure_class: str = "gpu-hw-lost") -> MachineEvent:
    return event(day, "fault", "kernel.xid", failure_class, xid=code)


def state(day: float, name: str, *, hardware: bool | None = None) -> MachineEvent:
    return event(day, "state", name, hardware=hardware)


ALONE = [job(day / 10, 1) for day in range(20, 39)]


@pytest.mark.parametrize(
    ("name", "events", "value", "raised"),
    [
        pytest.param("xid_cnt", [], None, None, id="no run, so no record"),
        pytest.param("xid_cnt", [job(1, 2)], 0, False, id="no Xid"),
        pytest.param("xid_cnt", [xid(1, 79), xid(2, 79)], 1, False, id="one Xid twice"),
        pytest.param("xid_cnt", [xid(1, 79), xid(2, 48)], 2, True, id="two Xids"),
        pytest.param("xid_cnt", [xid(1, 79), xid(2, 31, "gpu-app-fault")], 1, False, id="a program's Xid"),
        pytest.param("xid_cnt", [xid(-1, 79), xid(-2, 48), job(1, 2)], 0, False, id="Xids before the window"),
        pytest.param("xid_cnt", [event(1, "fault", "kernel.mce", "gpu-hw-ecc"), job(1, 1)], 0, False, id="a fault"),
        pytest.param("tickets", [state(1, "UP+DRAIN", hardware=True)], 1, False, id="drained for hardware"),
        pytest.param(
            "tickets",
            [state(1, "UP+DRAIN", hardware=True), state(1.1, "DOWN+DRAIN", hardware=True), state(2, "UP")],
            1,
            False,
            id="one repair",
        ),
        pytest.param(
            "tickets",
            [state(1, "UP+DRAIN", hardware=True), state(2, "UP"), state(9, "UP+DRAIN", hardware=True)],
            2,
            True,
            id="two repairs",
        ),
        pytest.param(
            "tickets",
            [event(1, "action", "accepted"), state(1.2, "UP+DRAIN", hardware=True)],
            1,
            False,
            id="accepted, then drained",
        ),
        pytest.param("tickets", [event(1, "action", "declined")], 0, False, id="declined"),
        pytest.param("tickets", [state(1, "UP+DRAIN", hardware=False)], 0, False, id="drained for software"),
        pytest.param("out_count", [state(1, "DOWN")], 0, False, id="down when first seen"),
        pytest.param("out_count", [state(-9, "UP"), state(1, "DOWN")], 1, False, id="went down"),
        pytest.param(
            "out_count",
            [state(0, "UP"), state(1, "DOWN"), state(2, "DOWN+DRAIN"), state(3, "UP"), state(4, "UP+DRAIN")],
            2,
            False,
            id="down, drained, up, drained",
        ),
        pytest.param(
            "out_count",
            [one for day in range(0, 6, 2) for one in (state(day, "UP"), state(day + 1, "DOWN+NOT_RESPONDING"))],
            3,
            True,
            id="three times",
        ),
        pytest.param(
            "out_count",
            [state(0, "UP"), state(1, "UP+POWERED_DOWN"), state(2, "UP"), state(3, "UP+DRAIN+REBOOT_REQUESTED")],
            0,
            False,
            id="planned",
        ),
        pytest.param("multi_node_node_fails", [job(1, 8, "slurm-node-fail")], 0, False, id="nobody named"),
        pytest.param(
            "multi_node_node_fails",
            [job(day, 8, "slurm-node-fail", named=True) for day in (1, 2)],
            2,
            True,
            id="named twice",
        ),
        pytest.param(
            "multi_node_node_fails", [job(1, 8, "rank-exception", named=True)], 0, False, id="the program's fault"
        ),
        pytest.param("multi_node_node_fails", [job(1, 1, "gpu-hw-ecc", named=True)], 0, False, id="one node"),
        pytest.param(
            "single_node_node_fails", [job(1, 1, "gpu-hw-ecc"), job(2, 1, "slurm-node-fail")], 2, True, id="alone"
        ),
        pytest.param("single_node_node_fails", [job(1, 1, "unknown")], 0, False, id="alone, unknown"),
        pytest.param("single_node_node_failure_rate", ALONE[:9], None, None, id="too few runs"),
        pytest.param("single_node_node_failure_rate", ALONE[:10], 0.0, False, id="ten good runs"),
        pytest.param(
            "single_node_node_failure_rate", [*ALONE, job(5, 1, "gpu-hw-ecc")], 0.05, False, id="one in twenty"
        ),
        pytest.param(
            "single_node_node_failure_rate", [*ALONE[:9], job(5, 1, "gpu-hw-ecc")], 0.1, True, id="one in ten"
        ),
        pytest.param(
            "single_node_node_failure_rate",
            [job(2, 1, count=99), job(5, 1, "gpu-hw-ecc")],
            0.01,
            False,
            id="good runs counted together",
        ),
    ],
)
def test_a_signal(name: str, events: list[MachineEvent], value: float | None, raised: bool | None) -> None:
    one = told(events)[name]
    assert (one.value, one.raised) == (pytest.approx(value) if value is not None else None, raised)
    assert one.threshold == LIMITS.signal(name).value


def test_all_seven_are_told_in_the_papers_order() -> None:
    assert tuple(told([])) == SIGNALS
    assert len(SIGNALS) == 7


@pytest.mark.parametrize(("jobs", "raised"), [([], False), ([1, 2, 3, 4, 4, 4], False), ([1, 2, 3, 4, 5], True)])
def test_different_jobs_that_exclude_the_node_count(jobs: list[int], raised: bool) -> None:
    events = [MachineEvent(NOW - 60.0 * at, "excluded", str(job), "poll") for at, job in enumerate(jobs)]
    one = told(events, excluded_since=NOW - DAY)["excl_jobid_count"]
    assert (one.value, one.raised) == (len(set(jobs)), raised)


def test_exclusions_that_nobody_asked_for_are_not_observed() -> None:
    one = told([])["excl_jobid_count"]
    assert (one.value, one.raised) == (None, None)


def test_what_comes_after_now_is_not_seen() -> None:
    later = [xid(29, 79), xid(30, 48), state(0, "UP"), state(31, "DOWN"), job(29, 1, "gpu-hw-ecc"), job(1, 2)]
    assert [one.value for one in told(later).values()] == [None, 0, 0, 0, 0, 0, None]


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ((), [None] * 7),
        (("state",), [None, None, None, 0, None, None, None]),
        (("state", "job"), [None, None, None, 0, 0, 0, None]),
        (("state", "action"), [None, None, 0, 0, None, None, None]),
        (("fault", "job"), [None, 0, None, None, 0, 0, None]),
    ],
)
def test_kinds_of_events_that_nobody_tells_of_are_not_observed(
    kinds: tuple[str, ...], wanted: list[int | None]
) -> None:
    events = tuple(event for event in (state(0, "UP"), job(1, 2)) if event.kind in kinds)
    machine = Machine("i-1", "n1", events=events)
    assert [one.value for one in signals(machine, NOW, LIMITS, kinds)] == wanted


def test_of_a_machine_without_events_nothing_is_observed() -> None:
    assert {one.value for one in told([]).values()} == {None}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("UP", False),
        ("DOWN+NOT_RESPONDING", True),
        ("UP+DRAIN", True),
        ("UP+FAIL", True),
        ("ERROR", True),
        ("UP+NOT_RESPONDING", False),
        ("UP+MAINT", False),
        ("UP+DRAIN+MAINTENANCE", False),
        ("DOWN+MAINTENANCE+RESERVED", False),
        ("UP+DRAIN+POWER_DOWN", False),
        ("DOWN+DRAIN+REBOOT_ISSUED", False),
        ("DOWN+POWERING_UP", False),
        ("", False),
    ],
)
def test_states_out_of_service(name: str, wanted: bool) -> None:
    assert out_of_service(name) is wanted
