from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.rows import RecommendationRow
from nccl_slurm.recommend.policy import load
from nccl_slurm.review.outcome import outcome
from tests.review.test_queue import NOW, row


def event(at: float, kind: str, name: str, failure_class: str | None = None, **data: Any) -> MachineEvent:
    return MachineEvent(NOW + at, kind, name, "poll", failure_class=failure_class, data=data)


def lost(at: float, gpu: str) -> MachineEvent:
    return event(at, "fault", "kernel.xid", "gpu-hw-lost", gpu=gpu, xid=79)


A1, B2 = "0000:a1:00", "0000:b2:00"
#: The rows of these tests were opened at -500.
REBOOTED = event(5.0, "boot", "asked")


LOST = event(90.0, "fault", "kernel.xid", "gpu-hw-lost")


@pytest.mark.parametrize(
    ("action", "events", "expected"),
    [
        ("reboot", [], (None, None)),
        ("reboot", [event(-5.0, "boot", "asked")], (None, None)),  # before the decision
        ("reboot", [event(5.0, "boot", "unasked")], (5.0, None)),
        ("reboot", [event(5.0, "boot", "asked"), LOST], (5.0, 90.0)),
        ("reboot", [event(5.0, "boot", "asked"), event(50.0, "fault", "kernel.oom", "host-oom")], (5.0, None)),
        ("reboot", [event(5.0, "fault", "kernel.xid", "gpu-hw-lost"), event(9.0, "boot", "asked")], (9.0, None)),
        ("replace", [event(5.0, "boot", "asked")], (None, None)),
        ("replace", [event(5.0, "replaced", "gone")], (5.0, None)),
        ("reboot", [lost(-600.0, A1), REBOOTED, lost(90.0, A1)], (5.0, 90.0)),
        ("reboot", [lost(-600.0, A1), REBOOTED, lost(90.0, B2)], (5.0, None)),  # another GPU
        ("reboot", [lost(-600.0, A1), lost(-599.0, B2), REBOOTED, lost(90.0, A1)], (5.0, 90.0)),
        ("reboot", [lost(-9000.0, B2), lost(-600.0, A1), REBOOTED, lost(90.0, B2)], (5.0, None)),
        (
            "reboot",
            [lost(-600.0, A1), REBOOTED, event(50.0, "gpu", "changed", gpu=A1, uuid="GPU-b"), lost(90.0, A1)],
            (5.0, None),
        ),
        ("investigate", [event(5.0, "state", "UP"), event(7.0, "state", "UP+DRAIN", owner="person")], (7.0, None)),
        ("investigate", [event(7.0, "state", "DOWN+NOT_RESPONDING", owner="slurm")], (None, None)),
        ("investigate", [event(7.0, "state", "UP+DRAIN", owner="nhc")], (None, None)),
    ],
)
def test_what_came_of_it(action: str, events: list[MachineEvent], expected: tuple[float | None, float | None]) -> None:
    accepted = row(action, state="accepted", decided=NOW)
    found = outcome(accepted, Machine("i-1", "n1", events=events))
    assert found is not None
    assert (found.carried_out, found.came_back) == tuple(None if at is None else NOW + at for at in expected)


PANIC = event(90.0, "fault", "kernel.panic")


@pytest.mark.parametrize(
    ("failure_class", "events", "came_back"),
    [
        ("slurm-node-fail", [REBOOTED, PANIC], 90.0),
        ("slurm-node-fail", [event(-600.0, "fault", "kernel.panic"), REBOOTED, PANIC], 90.0),
        ("slurm-node-fail", [REBOOTED, LOST], None),
        ("gpu-hw-ecc", [REBOOTED, event(90.0, "fault", "gpu.remap-pending", gpu=A1)], 90.0),
        ("gpu-hw-lost", [REBOOTED, event(90.0, "fault", "gpu.remap-pending", gpu=A1)], None),
    ],
)
def test_what_has_no_class_of_its_own_has_the_tables(
    failure_class: str, events: list[MachineEvent], came_back: float | None
) -> None:
    accepted = row("reboot", state="accepted", decided=NOW, failure_class=failure_class)
    found = outcome(accepted, Machine("i-1", "n1", events=events))
    assert found is not None and found.came_back == (None if came_back is None else NOW + came_back)


@pytest.mark.parametrize(("gap_s", "came_back"), [(180, None), (9000, 90.0)])
def test_what_one_burst_is_the_sites_row_says(gap_s: int, came_back: float | None) -> None:
    site = f'[[limit]]\nid = "burst-gap-s"\nvalue = {gap_s}\nmeans = "of this site"\nsource = "this site"\n'
    events = [lost(-9000.0, B2), lost(-600.0, A1), REBOOTED, lost(90.0, B2)]
    found = outcome(row("reboot", state="accepted", decided=NOW), Machine("i-1", "n1", events=events), load([site]))
    assert found is not None and found.came_back == (None if came_back is None else NOW + came_back)


def test_a_fault_that_may_have_been_before_the_boot_did_not_come_back() -> None:
    boot = MachineEvent(NOW + 5.0, "boot", "unasked", "slurmdbd", uncertainty_s=600.0)
    accepted = row("reboot", state="accepted", decided=NOW)
    for at, back in ((90.0, None), (700.0, NOW + 700.0)):
        found = outcome(accepted, Machine("i-1", "n1", events=[boot, lost(at, A1)]))
        assert found is not None and found.came_back == back


@pytest.mark.parametrize(("known", "said"), [(row(), None), (row(state="declined", decided=NOW), None)])
def test_nothing_of_what_nobody_accepted(known: RecommendationRow, said: None) -> None:
    assert outcome(known, Machine("i-1", "n1")) is said


def test_without_a_history_nothing_was_seen() -> None:
    found = outcome(row(state="accepted", decided=NOW), None)
    assert found is not None and found.text == "accepted; this machine has no history here"
