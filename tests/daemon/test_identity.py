"""Which machine a record speaks of; a table of what is known and what is seen."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.daemon.identity import Holder, Sighting, Step, decide, sighting_of
from nccl_slurm.history.rows import MachineRow
from tests.collect.test_shared import record

ID, OTHER, SOURCE = "i-0123456789abcdef0", "i-0fedcba9876543210", "board_asset_tag"


def by_name(**more: Any) -> MachineRow:
    return MachineRow(1, "n1", "node-name", **more)


def known(identity: str = ID, **more: Any) -> MachineRow:
    return MachineRow(2, identity, SOURCE, **more)


def seen(identity: str | None = ID, **more: Any) -> Sighting:
    return Sighting("n1", identity, SOURCE, **{"at": 2000.0, "began": 1900.0, **more})


HAND_OVER, SAME = "hand-over", Step("same")
#: name → (sighting, machine of the name, since when it has it, who is stored under the identity, step)
TABLE: dict[str, tuple[Sighting, MachineRow, float, Holder | None, Step]] = {
    "as before": (seen(), known(), 100.0, None, SAME),
    "by name alone": (seen(None), known(), 100.0, None, SAME),
    "first record, up since before the first poll": (
        seen(boot_time=50.0),
        by_name(),
        100.0,
        None,
        Step("identify"),
    ),
    "first record, booted a minute after the first poll": (
        seen(boot_time=161.0),
        by_name(),
        100.0,
        None,
        Step("identify"),
    ),
    "first record, booted since: what was before is not known to be its": (
        seen(boot_time=1500.0),
        by_name(),
        100.0,
        None,
        Step(HAND_OVER, 1495.0),
    ),
    "first record without a boot time": (seen(), by_name(), 100.0, None, Step(HAND_OVER, 1895.0)),
    "first record, without anything": (
        seen(began=None),
        by_name(),
        100.0,
        None,
        Step(HAND_OVER, 1995.0),
    ),
    "replaced": (
        seen(boot_time=1500.0),
        known(OTHER, boot_id="a"),
        100.0,
        None,
        Step(HAND_OVER, 1495.0, True),
    ),
    "replaced by one that has long been up": (
        seen(boot_time=50.0),
        known(OTHER),
        100.0,
        None,
        Step(HAND_OVER, 100.0, True),
    ),
    "replaced by one that had the name before": (
        seen(boot_time=1500.0),
        known(OTHER),
        100.0,
        Holder(known(), None, False),
        Step(HAND_OVER, 1495.0, True),
    ),
    "another name for the same boot": (
        seen(boot_id="a", boot_time=50.0),
        known(OTHER, boot_id="a"),
        100.0,
        None,
        Step("identify"),
    ),
    "moved from a node that is down": (
        seen(boot_time=1500.0),
        by_name(),
        100.0,
        Holder(known(), "n2", False),
        Step(HAND_OVER, 1495.0),
    ),
    "moved, the name is new": (
        seen(boot_time=50.0),
        by_name(),
        100.0,
        Holder(known(), "n2", False),
        Step(HAND_OVER, 100.0),
    ),
    "two live nodes": (seen(), by_name(), 100.0, Holder(known(), "n2", True), Step("shared")),
    "two live nodes, one of which has another identity": (
        seen(),
        known(OTHER),
        100.0,
        Holder(known(), "n2", True),
        Step("shared"),
    ),
    "two nodes that were up at the same time": (
        seen(boot_time=1200.0),
        by_name(),
        100.0,
        Holder(known(seen=1500.0, boot_time=1600.0), "n2", True),
        Step("shared"),
    ),
    "both nodes booted since: who has the old name is not known yet": (
        seen(boot_time=1800.0),
        by_name(),
        100.0,
        Holder(known(seen=1500.0, boot_time=1800.0), "n2", True),
        SAME,
    ),
    "this one booted since, the other node did not": (
        seen(boot_time=1800.0),
        by_name(),
        100.0,
        Holder(known(seen=1500.0, boot_time=900.0), "n2", True),
        Step("shared"),
    ),
    "shared once, never believed again": (
        seen(),
        by_name(),
        100.0,
        Holder(known(shared=True), None, False),
        SAME,
    ),
    "the name of another node": (
        seen("n2"),
        by_name(),
        100.0,
        Holder(MachineRow(3, "n2", "node-name"), "n2", False),
        SAME,
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_steps(case: str) -> None:
    sighting, now, since, holder, step = TABLE[case]
    assert decide(sighting, now, since, holder) == step


@pytest.mark.parametrize(
    ("source", "identity"),
    [("capture.conf", "m1"), ("board_asset_tag", "m1"), ("dmi-uuid", "m1"), ("node-name", None)],
)
def test_a_record_as_a_sighting(source: str, identity: str | None) -> None:
    machine = {**record()["machine"], "identity_source": source, "boot_id": "b", "boot_time": 5.0}
    prolog = {"time": 7.0, "boot_id": "b", "env": {}}
    found = sighting_of(record(machine=machine, prolog=prolog, written=9.0))
    assert found == Sighting("n1", identity, source, 9.0, 7.0, "b", 5.0)
    assert found.since == 5.0
