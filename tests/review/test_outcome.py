from __future__ import annotations

import pytest

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.rows import RecommendationRow
from nccl_slurm.review.outcome import outcome
from tests.review.test_queue import NOW, row


def event(at: float, kind: str, name: str, failure_class: str | None = None) -> MachineEvent:
    return MachineEvent(NOW + at, kind, name, "poll", failure_class=failure_class)


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
        ("investigate", [event(5.0, "state", "UP"), event(7.0, "state", "UP+DRAIN")], (7.0, None)),
    ],
)
def test_what_came_of_it(action: str, events: list[MachineEvent], expected: tuple[float | None, float | None]) -> None:
    accepted = row(action, state="accepted", decided=NOW)
    found = outcome(accepted, Machine("i-1", "n1", events=events))
    assert found is not None
    assert (found.carried_out, found.came_back) == tuple(None if at is None else NOW + at for at in expected)


@pytest.mark.parametrize(("known", "said"), [(row(), None), (row(state="declined", decided=NOW), None)])
def test_nothing_of_what_nobody_accepted(known: RecommendationRow, said: None) -> None:
    assert outcome(known, Machine("i-1", "n1")) is said


def test_without_a_history_nothing_was_seen() -> None:
    found = outcome(row(state="accepted", decided=NOW), None)
    assert found is not None and found.text == "accepted; this machine has no history here"
