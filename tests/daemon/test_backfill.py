"""slurmdbd's rows and the edges that polls saw → what is missing. Rows as a real slurmdbd gives them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nccl_slurm.daemon.backfill import missed_edges
from nccl_slurm.history.rows import NodeEventRow
from nccl_slurm.scheduler.client import NodeEvent, NodeState
from nccl_slurm.scheduler.text import read_events
from tests.scheduler.test_text import bare

Edge = tuple[float, str, str | None]


def row(start: float, end: float | None, state: str, reason: str | None, *flags: str, node: str = "n1") -> NodeEvent:
    return NodeEvent(node, start, end, state, frozenset(flags), "root(0)", reason)


def edge(at: float, state: str, reason: str | None = None) -> NodeEventRow:
    return NodeEventRow("n1", at, state, reason, "root" if reason else None)


UP = NodeState("n1", "IDLE")
DRAINED = NodeState("n1", "IDLE", frozenset({"DRAIN", "NOT_RESPONDING"}), "fan")
ECC = "ECC errors | gpu 3, 'quoted' é"

#: name → (rows, stored edges, state now, expected); the time to fill is 100 to 1000
TABLE: dict[str, tuple[Sequence[NodeEvent], Sequence[NodeEventRow], NodeState, list[Edge]]] = {
    "nothing": ([], [edge(50, "UP")], UP, []),
    "drained and resumed": (
        [row(200, 300, "DRAIN", ECC)],
        [edge(50, "UP")],
        UP,
        [(200, "UP+DRAIN", ECC), (300, "UP", None)],
    ),
    "first start": (
        [row(200, 300, "DOWN", "x", "NOT_RESPONDING")],
        [],
        UP,
        [(200, "DOWN+NOT_RESPONDING", "x"), (300, "UP", None)],
    ),
    "a second reason follows without a pause": (
        [row(200, 300, "DRAIN", "one"), row(300, 400, "DRAIN", "two")],
        [edge(50, "UP")],
        UP,
        [(200, "UP+DRAIN", "one"), (300, "UP+DRAIN", "two"), (400, "UP", None)],
    ),
    "open still: in the state that it is in": (
        [row(200, None, "DRAIN", "fan")],
        [edge(50, "UP")],
        DRAINED,
        [(200, "UP+DRAIN+NOT_RESPONDING", "fan")],
    ),
    "open still, with another reason by now": (
        [row(200, None, "DRAIN", "old")],
        [edge(50, "UP")],
        DRAINED,
        [(200, "UP+DRAIN", "old")],
    ),
    "began before, ended in between": (
        [row(60, 300, "DRAIN", "fan")],
        [edge(60, "UP+DRAIN", "fan")],
        UP,
        [(300, "UP", None)],
    ),
    "drained while a job ran: its row begins when the job ends": (
        [row(200, None, "DRAIN", "fan")],
        [edge(60, "UP+DRAIN+NOT_RESPONDING", "fan")],
        DRAINED,
        [],
    ),
    "polls saw it by the second": (
        [row(200, 300, "DOWN", "x")],
        [edge(50, "UP"), edge(200.4, "DOWN+DRAIN", "x"), edge(301, "UP")],
        UP,
        [],
    ),
    "polls came later": (
        [row(200, None, "DRAIN", "fan")],
        [edge(50, "UP"), edge(900, "UP+DRAIN+NOT_RESPONDING", "fan")],
        DRAINED,
        [],
    ),
    "twice the same reason, polls saw the second": (
        [row(200, 300, "DRAIN", "fan"), row(400, None, "DRAIN", "fan")],
        [edge(50, "UP"), edge(900, "UP+DRAIN", "fan")],
        DRAINED,
        [(200, "UP+DRAIN", "fan"), (300, "UP", None)],
    ),
    "rebooted": (
        [row(200, 250, "BOOT", "kernel update : reboot issued", "REBOOT_ISSUED")],
        [edge(50, "UP")],
        UP,
        [(200, "DOWN+REBOOT_ISSUED", "kernel update : reboot issued"), (250, "UP", None)],
    ),
    "failed": ([row(200, 201, "FAIL", "fan")], [edge(50, "UP")], UP, [(200, "UP+FAIL", "fan"), (201, "UP", None)]),
    "powered down": (
        [row(200, 400, "IDLE", "Powered down after SuspendTimeout", "POWERED_DOWN")],
        [edge(50, "UP")],
        UP,
        [(200, "UP+POWERED_DOWN", "Powered down after SuspendTimeout"), (400, "UP", None)],
    ),
    "before and after the time": ([row(40, 90, "DOWN", "x"), row(1100, None, "DOWN", "y")], [], UP, []),
    "of another node": ([row(200, 300, "DOWN", "x", node="n2")], [edge(150, "DOWN", "x")], UP, []),
}


@pytest.mark.parametrize("case", TABLE)
def test_missed_edges(case: str) -> None:
    rows, stored, now, expected = TABLE[case]
    found = missed_edges(rows, stored, {"n1": now}, 100.0, 1000.0)
    assert [(one.time, one.state, one.reason) for one in found if one.node == "n1"] == expected
    assert {one.source for one in found} <= {"slurmdbd"} and {one.reason_by for one in found} <= {"root", None}
    assert missed_edges(rows, [*stored, *found], {"n1": now}, 100.0, 1000.0) == []


def test_rows_as_sacctmgr_prints_them() -> None:
    printed = (
        "n1|200|300|DRAIN|root(0)|ECC errors | gpu 3, 'quoted' é\n"
        "n1|300|310|DRAIN|root(0)|second reason\n"
        "n1|400|405|BOOT^|slurm(64030)|kernel update : reboot issued\n"
        "n1|500|Unknown|DOWN|slurm(64030)|Node unexpectedly rebooted\n"
    )
    now = NodeState("n1", "DOWN", reason="Node unexpectedly rebooted")
    found = missed_edges(read_events(bare(printed), printed), [edge(50, "UP")], {"n1": now}, 100.0, 1000.0)
    assert [(one.time, one.state, one.reason) for one in found] == [
        (200, "UP+DRAIN", ECC),
        (300, "UP+DRAIN", "second reason"),
        (310, "UP", None),
        (400, "DOWN+REBOOT_ISSUED", "kernel update : reboot issued"),
        (405, "UP", None),
        (500, "DOWN", "Node unexpectedly rebooted"),
    ]
