"""What is a boot and what is a clock, by each source; and whether it was asked for."""

from __future__ import annotations

import pytest

from nccl_slurm.daemon.boots import boot_of_poll, boot_of_record, boots_of_events, reads_anew, told
from nccl_slurm.daemon.identity import Sighting
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import MachineRow, NodeEventRow
from nccl_slurm.scheduler.client import NodeEvent, NodeState


@pytest.mark.parametrize(
    ("boot", "slurmd", "booted", "kept"),
    [
        (1000.0, 1060.0, False, False),
        (1001.0, 1060.0, False, False),  # it wobbles by a second
        (999.0, 1060.0, False, False),
        (None, 1060.0, False, False),  # for seconds after a resume
        (1000.0, 2000.0, False, True),  # slurmd was started again
        (5000.0, 5060.0, True, True),
        (5000.0, None, True, True),  # not told when slurmd started
        (8200.0, 1060.0, False, True),  # the same slurmd: its clock was set
        (400.0, 5060.0, False, True),  # another machine, which has been up for longer
    ],
)
def test_slurms_boot_time(boot: float | None, slurmd: float | None, booted: bool, kept: bool) -> None:
    row = MachineRow(1, "n1", "node-name", boot_time=1000.0, slurmd_start=1060.0)
    node = NodeState("n1", "IDLE", boot_time=boot, slurmd_start=slurmd)
    found = boot_of_poll(row, node)
    assert (found is not None, reads_anew(row, node)) == (booted, kept)
    assert found is None or (found.time, found.name, found.source) == (boot, "unasked", "poll")


def test_the_first_boot_time_is_no_boot() -> None:
    row, node = MachineRow(1, "n1", "node-name"), NodeState("n1", "IDLE", boot_time=1000.0)
    assert boot_of_poll(row, node) is None and reads_anew(row, node)


@pytest.mark.parametrize(
    ("was", "now", "boot_time", "began", "expected"),
    [
        (None, "b", 1000.0, 1100.0, None),
        ("a", None, 1000.0, 1100.0, None),
        ("a", "a", 1000.0, 1100.0, None),
        ("a", "b", 1000.0, 1100.0, (1000.0, 1.0)),
        ("a", "b", None, 1100.0, (1100.0, 600.0)),
        ("a", "b", None, None, (1200.0, 700.0)),
    ],
)
def test_boot_ids(
    was: str | None, now: str | None, boot_time: float | None, began: float | None, expected: object
) -> None:
    row = MachineRow(1, "n1", "node-name", boot_id=was, seen=500.0)
    found = boot_of_record(row, Sighting("n1", None, "node-name", 1200.0, began, now, boot_time))
    assert (found and (found.time, found.uncertainty_s)) == expected


ISSUED = "kernel update : reboot issued"


@pytest.mark.parametrize(
    ("row", "booted", "name", "at"),
    [
        (("BOOT", {"REBOOT_ISSUED"}, 300.0, ISSUED), 250.0, "asked", 250.0),
        (("DOWN", {"REBOOT_ISSUED"}, 300.0, ISSUED), 301.0, "asked", 301.0),  # BootTime wobbles
        (("BOOT", {"REBOOT_ISSUED"}, None, ISSUED), 250.0, None, None),  # not back yet
        (("BOOT", {"REBOOT_ISSUED"}, 300.0, ISSUED), 50.0, None, None),  # resumed, or timed out, without a boot
        (("BOOT", {"REBOOT_ISSUED"}, 300.0, ISSUED), None, None, None),
        (("BOOT", {"REBOOT_ISSUED"}, 300.0, ISSUED), 900.0, None, None),  # it booted later: whether here too, who knows
        (("DOWN", set(), 300.0, "x : reboot issued : reboot timed out"), 250.0, None, None),
        (("DRAIN", set(), 300.0, "ticket 4711 open, no reboot issued"), 250.0, None, None),  # a person's words
        (("DRAIN", set(), 300.0, ISSUED), 250.0, None, None),
        (("DOWN", set(), None, "Node unexpectedly rebooted"), 95.0, "unasked", 100.0),
        (("DOWN", set(), None, "Node unexpectedly rebooted"), None, "unasked", 100.0),
        (("DOWN", set(), None, "Node unexpectedly rebooted"), -900.0, None, None),
        (("DRAIN", set(), None, "Node unexpectedly rebooted"), 95.0, None, None),
        (("DOWN", set(), None, "Node unexpectedly rebooted twice, says bob"), 95.0, None, None),
        (("DOWN", {"NOT_RESPONDING"}, 300.0, "Not responding"), 250.0, None, None),
        (("DRAIN", set(), 300.0, None), 250.0, None, None),
    ],
)
def test_slurmdbds_rows(
    row: tuple[str, set[str], float | None, str | None], booted: float | None, name: str | None, at: object
) -> None:
    state, flags, end, reason = row
    event = NodeEvent("n1", 100.0, end, state, frozenset(flags), "slurm(64030)", reason)
    found = [(boot.name, boot.time) for _, boot in boots_of_events([event], {"n1": booted})]
    assert found == ([(name, at)] if name else [])


@pytest.mark.parametrize(
    ("state", "reason", "name"),
    [
        ("UP", None, "unasked"),
        ("DOWN+NOT_RESPONDING", "Not responding", "unasked"),
        ("UP+DRAIN", "bad fan", "unasked"),
        ("UP+DRAIN+REBOOT_REQUESTED", "kernel update", "asked"),
        ("DOWN+DRAIN+REBOOT_ISSUED", "kernel update : reboot issued", "asked"),
        ("DOWN+NOT_RESPONDING", "kernel update : reboot issued", "asked"),
        # nextstate=DOWN: the edge of that second (22.05)
        ("DOWN", "kernel update : reboot issued : reboot complete", "asked"),
        ("DOWN", "fan : reboot complete", "unasked"),
        ("UP+FAIL", "Action:Reboot", "asked"),
        ("UP+FAIL", "no Action:Reboot please", "unasked"),
        ("UP+DRAIN", "ticket 4711, no reboot issued", "unasked"),
    ],
)
def test_asked_by_the_state_before(state: str, reason: str | None, name: str) -> None:
    boot = MachineEvent(100.0, "boot", "unasked", "poll")
    found = told(boot, NodeEventRow("n1", 50.0, state, reason, "root"))
    assert found.name == name
    assert found.data == ({"by": "root", "reason": reason} if name == "asked" else {})
    assert told(boot, None) == boot
