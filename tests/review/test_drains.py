from __future__ import annotations

import pytest

from nccl_slurm.history.rows import NodeEventRow
from nccl_slurm.review.drains import NO_REASON_TO, NOT_OBSERVED, drains, is_out
from tests.review.test_queue import row


@pytest.mark.parametrize(
    ("state", "out"),
    [
        ("UP", False),
        ("UP+MAINTENANCE", False),
        ("UP+POWERED_DOWN", False),
        ("UP+DRAIN", True),
        ("UP+REBOOT_REQUESTED", True),
        ("DOWN", True),
        ("DOWN+NOT_RESPONDING", True),
        ("UP+NOT_RESPONDING", True),
        ("FAIL", True),
        ("UNKNOWN", True),
    ],
)
def test_what_counts_as_out_of_work(state: str, out: bool) -> None:
    assert is_out(state) is out


def edge(node: str, at: float, state: str, reason: str | None = None) -> NodeEventRow:
    return NodeEventRow(node, at, state, reason, "root(0)")


def test_one_row_a_node_and_what_to_do_first_on_top() -> None:
    now = [edge("n1", 50.0, "UP+DRAIN", "bad fan"), edge("n2", 9.0, "DOWN")]
    now += [edge("n3", 1.0, "UP"), edge("n4", 3.0, "UP"), edge("n5", 2.0, "UP")]
    active = [row("reboot", number=1), row("replace", number=2), row("replace", number=3, state="snoozed")]
    active = [type(one)(**{**vars(one), "node": node}) for one, node in zip(active, ("n2", "n4", "n5"), strict=True)]
    rows = drains(
        now, {"n1": [edge("n1", 20.0, "UP+DRAIN", "x"), now[0]]}, active, {"n1": 3}, {"n1"}, {"bad fan": "person"}
    )
    assert [one.node for one in rows] == ["n4", "n5", "n2", "n1"]
    (last,) = [one for one in rows if one.node == "n1"]
    assert (last.since, last.jobs_lost, last.reason_class, last.opinion) == (20.0, 3, "person", NO_REASON_TO)
    assert [event.time for event in last.events] == [50.0, 20.0]


def test_not_observed_is_no_opinion() -> None:
    (one,) = drains([edge("n1", 50.0, "DOWN")], {}, [], {}, frozenset(), {})
    assert (one.opinion, one.recommendation) == (NOT_OBSERVED, None)
