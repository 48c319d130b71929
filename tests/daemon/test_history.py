"""The daemon over a Slurm in memory: what machines' history holds after polls, records, ends of runs, and pauses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.config import History
from nccl_slurm.daemon.filling import FILLED
from nccl_slurm.parse.kernel import kernel_facts
from tests.collect.test_shared import record as empty_record
from tests.daemon.test_loop import FAILED, Lab, end_badly

DAY = 86400.0
XID = "NVRM: Xid (PCI:0000:A1:00.0): 79, pid=12, name=python3, GPU has fallen off the bus."
BORN = 1_000_000_000.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


def machine(identity: str = "i-1", **more: Any) -> dict[str, Any]:
    base = empty_record()["machine"]
    return {**base, "identity": identity, "boot_id": "b1", "boot_time": BORN - 5000.0, **more}


def arrives(lab: Lab, node: str = "n1", *, xid_at: float | None = None, **fields: Any) -> None:
    """A record of a run that went well."""
    job = lab.slurm.submit(node)
    lab.run(12)
    lab.slurm.end(job)
    facts = [one.to_json() for one in kernel_facts([(xid_at, XID)] if xid_at else [], node)]
    lab.record(job, node, kernel_events=facts, written=lab.clock.now(), **fields)
    lab.run(4)


def events(lab: Lab, node: str = "n1", *kinds: str) -> list[tuple[str, str]]:
    wanted = kinds or ("fault", "boot", "state", "replaced")
    return [(event.kind, event.name) for event in lab.store.machine(node).events if event.kind in wanted]


def test_polls_make_edges_and_not_samples(lab: Lab) -> None:
    lab.run(120)
    lab.slurm.set_node("n1", "IDLE+DRAIN", "NHC: check_ps_unauth_users: x")
    lab.run(120)
    lab.slurm.set_node("n1", "IDLE")
    lab.run(120)
    assert events(lab) == [("state", "UP"), ("state", "UP+DRAIN"), ("state", "UP")]
    state = lab.store.machine("n1").events[1]
    assert (state.data["owner"], state.data["hardware"], state.data["by"]) == ("nhc", False, "root")


def test_edges_keep_their_order_though_slurm_cuts_seconds_off(lab: Lab) -> None:
    lab.run(40)
    lab.clock.sleep(0.6)
    lab.slurm.set_node("n1", "DOWN", "one")
    lab.run(31)
    lab.slurm.set_node("n1", "IDLE")
    lab.run(31)
    seen = list(lab.store.machine("n1").of_kind("state"))[-1].time
    lab.slurm.set_node("n1", "DOWN", "two")
    lab.slurm._nodes["n1"] = dataclasses.replace(lab.slurm._nodes["n1"], reason_at=float(int(seen)))
    lab.run(31)
    assert [event.text for event in lab.store.machine("n1").of_kind("state")] == ["", "one", "", "two"]


def test_a_boot_time_that_wobbles_is_no_boot(lab: Lab) -> None:
    lab.run(40)
    for step in (1.0, -1.0, None, 0.0):
        node = lab.slurm._nodes["n1"]
        lab.slurm._nodes["n1"] = dataclasses.replace(node, boot_time=None if step is None else BORN + step)
        lab.run(40)
    assert events(lab, "n1", "boot") == []


@pytest.mark.parametrize(
    ("state", "reason", "name"),
    [
        ("DOWN+DRAIN+REBOOT_ISSUED", "kernel update : reboot issued", "asked"),
        ("IDLE+FAIL", "Action:Reboot", "asked"),
        ("DOWN*", "Not responding", "unasked"),
    ],
)
def test_a_boot_and_whether_it_was_asked_for(lab: Lab, state: str, reason: str, name: str) -> None:
    lab.run(40)
    lab.slurm.set_node("n1", state, reason, "alice")
    lab.run(40)
    lab.slurm.reboot("n1")
    lab.slurm.set_node("n1", "IDLE")
    lab.run(40)
    (boot,) = lab.store.machine("n1").of_kind("boot")
    assert (boot.name, boot.source) == (name, "poll")
    assert boot.data == ({"by": "alice", "reason": reason} if name == "asked" else {})
    when = boot.time
    arrives(lab, machine=machine("n1", identity_source="node-name", boot_id="b2", boot_time=when + 1))
    arrives(lab, machine=machine("n1", identity_source="node-name", boot_id="b2", boot_time=when - 1))
    assert events(lab, "n1", "boot") == [("boot", name)]


def test_a_boot_that_records_tell_first(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, machine=machine())
    when = lab.clock.now() + 1
    arrives(lab, machine=machine(boot_id="b2", boot_time=when))
    lab.slurm._nodes["n1"] = dataclasses.replace(lab.slurm._nodes["n1"], boot_time=when + 1)
    lab.run(40)
    (boot,) = lab.store.machine("n1").of_kind("boot")
    assert (boot.time, boot.name, boot.source) == (when, "unasked", "record")


def test_faults_are_the_machines_and_each_is_one(lab: Lab) -> None:
    lab.run(40)
    at = lab.clock.now()
    for _ in range(2):
        arrives(lab, machine=machine(), xid_at=at + 2)
    (fault,) = lab.store.machine("n1").of_kind("fault")
    assert (fault.time, fault.data["xid"], fault.failure_class) == (at + 2, 79, "gpu-hw-lost")
    assert lab.store.machine("n1").identity == "i-1" and events(lab, "n2", "fault") == []


def test_a_replaced_machine_starts_clean(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, machine=machine(), xid_at=lab.clock.now())
    lab.slurm.set_node("n1", "DOWN", "Action:Replace", "root")
    lab.run(60)
    booted = lab.clock.now()
    lab.slurm.reboot("n1")
    lab.slurm.set_node("n1", "IDLE")
    lab.run(60)
    arrives(lab, machine=machine("i-2", boot_id="x1", boot_time=booted))
    assert events(lab) == [("replaced", "came"), ("state", "UP")]
    old = lab.store.machine_of("i-1")
    assert old is not None
    assert [(one.kind, one.name) for one in old.events if one.kind != "job"] == [
        ("state", "UP"),
        ("fault", "kernel.xid"),
        ("state", "DOWN"),
        ("replaced", "gone"),
    ]
    assert [one.identity for one in lab.store.generations("n1")] == ["i-1", "i-2"]
    lab.run(40)
    assert [one.data["nodes"] for one in lab.store.machine("n1").of_kind("job")] == [1]


def test_a_late_record_of_the_old_machine_accuses_that_one(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, machine=machine())
    job = lab.slurm.submit("n1")
    lab.run(12)
    died = lab.clock.now()
    lab.slurm.end(job, "NODE_FAIL")
    lab.clock.sleep(600)
    arrives(lab, machine=machine("i-2", boot_id="x1", boot_time=lab.clock.now()))
    facts = [one.to_json() for one in kernel_facts([(died, XID)], "n1")]
    lab.record(job, "n1", at=died - 12, written=died + 1, kernel_events=facts, machine=machine())
    lab.run(5)
    assert events(lab, "n1", "fault") == []
    assert [one.time for one in lab.store.machine_of("i-1").of_kind("fault")] == [died]  # type: ignore[union-attr]


def test_two_live_nodes_with_one_identity_fall_back_to_their_names(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, "n1", machine=machine("clone"), xid_at=lab.clock.now())
    for _ in range(2):
        arrives(lab, "n2", machine=machine("clone"))
    assert [lab.store.machine(node).identity for node in ("n1", "n2")] == ["clone", "n2"]
    assert events(lab, "n2", "fault") == [] and len(lab.store.notes("history")) == 1
    lab.slurm.set_node("n1", "DOWN*", "Not responding")
    lab.run(40)
    arrives(lab, "n2", machine=machine("clone"))
    assert lab.store.machine("n2").identity == "n2"


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_machines_that_change_their_names_keep_their_pasts(lab: Lab, first: str) -> None:
    """i-1 goes from n1 to n2, i-9 comes to n1; whichever tells of itself first."""
    lab.run(40)
    arrives(lab, "n1", machine=machine("i-1"), xid_at=lab.clock.now())
    for node in ("n1", "n2"):
        lab.slurm.set_node(node, "DOWN", "re-racked")
    lab.run(600)
    booted = lab.clock.now()
    for node in ("n1", "n2"):
        lab.slurm.reboot(node)
        lab.slurm.set_node(node, "IDLE")
    lab.run(60)
    now = {"n2": machine("i-1", boot_id="b2", boot_time=booted), "n1": machine("i-9", boot_id="b9", boot_time=booted)}
    for node in (first, "n1", "n2"):
        arrives(lab, node, machine=now[node])
    assert {node: lab.store.machine(node).identity for node in now} == {"n1": "i-9", "n2": "i-1"}
    assert events(lab, "n2", "fault") == [("fault", "kernel.xid")] and events(lab, "n1", "fault") == []


def test_a_machine_that_moved_keeps_its_past(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, "n1", machine=machine("i-1"), xid_at=lab.clock.now())
    lab.slurm.set_node("n1", "DOWN*", "Not responding")
    lab.run(40)
    arrives(lab, "n2", machine=machine("i-1", boot_id="b2", boot_time=lab.clock.now()))
    assert ("fault", "kernel.xid") in events(lab, "n2", "fault")
    assert [one.node for one in lab.store.places("i-1")] == ["n1", "n2"]
    lab.slurm.set_node("n1", "IDLE")
    lab.run(40)
    assert (lab.store.machine("n1").identity, events(lab, "n1", "fault")) == ("n1", [])


ODD = {"uuid": ["x"], "bus_id": 7, "ecc": "no", "remapped": None, "nvlink": {"active": "many", "inactive": [{}]}}


@pytest.mark.parametrize("fault_of_ours", [False, True])
def test_odd_readings_and_our_own_faults_hold_up_no_record(
    lab: Lab, fault_of_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run(40)
    if fault_of_ours:
        monkeypatch.setattr("nccl_slurm.daemon.machines.kernel_faults", lambda record: record["nothing"])
    taken = dict.fromkeys(("disks", "driver", "gpu_processes", "limits", "load", "ports", "shm"))
    arrives(
        lab, machine=machine(), snapshots={"before": {**taken, "start": 1.0, "end": 2.0, "gpus": [ODD]}, "after": None}
    )
    assert lab.store.records("c", 1, 1) != () and lab.store.notes("quarantine") == ()
    assert [note.text for note in lab.store.notes("history")] == ["record of n1: KeyError: 'nothing'"] * fault_of_ours


def test_how_runs_ended_counts_for_each_machine(lab: Lab) -> None:
    lab.run(40)
    arrives(lab, "n1", machine=machine("n1", identity_source="node-name"))
    job = end_badly(lab)
    for node in ("n1", "n2"):
        lab.record(job, node)
    lab.run(5)
    cancelled = lab.slurm.submit("n2")
    lab.run(12)
    lab.slurm.end(cancelled, "CANCELLED", cancelled_by="0")
    lab.run(70)
    found = {node: list(lab.store.machine(node).of_kind("job")) for node in ("n1", "n2")}
    assert [(one.name, one.data["nodes"]) for one in found["n1"]] == [("well", 1), ("failed", 2)]
    assert found["n1"][1].data["named"] is False and found["n1"][1].data["job"] == str(job)
    assert [(one.name, one.data.get("class")) for one in found["n2"]][1:] == [("well", "preempt-cancel")]


def test_a_late_record_changes_the_outcome_and_adds_none(lab: Lab) -> None:
    lab.run(40)
    job = end_badly(lab, "n1")
    began = lab.clock.now() - 3
    lab.run(70)
    facts = [one.to_json() for one in kernel_facts([(began + 1, XID)], "n1")]
    lab.record(job, "n1", at=began, kernel_events=facts, machine=machine())
    lab.run(5)
    (outcome,) = lab.store.machine("n1").of_kind("job")
    assert (outcome.data["class"], outcome.data["named"]) == ("gpu-hw-lost", True)


# -- slurmdbd


def years(lab: Lab) -> None:
    """n1 was drained 400 days ago for a day, n2 went down and was rebooted 3 days ago."""
    now = lab.clock.now()
    lab.clock.sleep(-400 * DAY)
    lab.slurm.set_node("n1", "IDLE+DRAIN", "bad | fan")
    lab.clock.sleep(DAY)
    lab.slurm.set_node("n1", "IDLE")
    lab.clock.sleep(396 * DAY)
    lab.slurm.set_node("n2", "DOWN+DRAIN+REBOOT_ISSUED", "kernel update : reboot issued")
    lab.clock.sleep(240)
    lab.slurm.reboot("n2")
    lab.clock.sleep(60)
    lab.slurm.set_node("n2", "IDLE")
    lab.clock.sleep(now - lab.clock.now())


def test_the_first_start_learns_what_was_before_it(lab: Lab) -> None:
    years(lab)
    lab.run(40)
    now = lab.clock.now()
    first = lab.store.machine("n1")
    assert [(event.name, event.text) for event in first.of_kind("state")] == [
        ("UP+DRAIN", "bad | fan"),
        ("UP", ""),
    ]
    assert first.since == pytest.approx(now - 400 * DAY, abs=60)
    (boot,) = lab.store.machine("n2").of_kind("boot")
    assert (boot.name, boot.source) == ("asked", "slurmdbd")
    lab.restart()
    lab.run(40)
    assert lab.store.machine("n1") == first


def test_an_identity_that_is_learned_later_does_not_inherit_what_was_before_its_boot(lab: Lab) -> None:
    years(lab)
    lab.run(40)
    arrives(lab, machine=machine(boot_time=BORN - 5000.0))
    assert [event.name for event in lab.store.machine("n1").of_kind("state")] == []
    assert [one.identity for one in lab.store.generations("n1")] == ["n1", "i-1"]
    assert events(lab, "n2", "boot") == [("boot", "asked")]


@pytest.mark.parametrize("slurmdbd_late", [False, True])
def test_what_happened_while_the_daemon_was_away(lab: Lab, slurmdbd_late: bool) -> None:
    lab.run(100)
    lab.slurm.set_node("n3", "IDLE+DRAIN", "before and after")
    lab.run(100)
    for name, reason in (("n1", "flash"), ("n2", "stays")):
        lab.clock.sleep(600)
        lab.slurm.set_node(name, "DOWN", reason)
    lab.clock.sleep(600)
    lab.slurm.set_node("n1", "IDLE")
    lab.clock.sleep(7200)
    lab.restart()
    if slurmdbd_late:
        lab.slurm.away = {"slurmdbd"}
    lab.run(100)
    lab.slurm.away = set()
    lab.run(200)
    assert events(lab, "n1") == [("state", "UP"), ("state", "DOWN"), ("state", "UP")]
    assert events(lab, "n2") == [("state", "UP"), ("state", "DOWN")]
    assert events(lab, "n3") == [("state", "UP"), ("state", "UP+DRAIN")]
    down = list(lab.store.machine("n1").of_kind("state"))
    assert (down[1].time, down[2].time - down[1].time, down[1].source) == (BORN + 800, 1200.0, "slurmdbd")


def test_what_slurmdbd_learned_late_is_asked_for_once_more(lab: Lab) -> None:
    """slurmctld had no slurmdbd either while the daemon was away."""
    lab.run(100)
    lab.clock.sleep(600)
    lab.slurm.set_node("n1", "DOWN", "flash")
    lab.clock.sleep(600)
    lab.slurm.set_node("n1", "IDLE")
    lab.clock.sleep(600)
    late, lab.slurm._events = lab.slurm._events, []
    lab.restart()
    lab.run(60)
    lab.slurm._events = late
    lab.run(20)
    lab.slurm.set_node("n1", "IDLE+DRAIN", "later")
    lab.run(120)
    assert events(lab, "n1") == [("state", "UP"), ("state", "DOWN"), ("state", "UP"), ("state", "UP+DRAIN")]
    lab.slurm.calls.clear()
    lab.run(600)
    assert events(lab, "n1")[-1] == ("state", "UP+DRAIN") and len(events(lab, "n1")) == 4


def test_nodes_that_slurm_has_no_more_get_no_machine(lab: Lab) -> None:
    years(lab)
    gone = lab.slurm._nodes.pop("n1")
    lab.run(40)
    assert "n1" not in lab.store.machines_now() and "n2" in lab.store.machines_now() and gone.name == "n1"


@pytest.mark.parametrize(
    ("role", "controllers", "expected"),
    [
        ({"slurmctld_running": False, "node_type": None}, [], "compute"),
        ({"slurmctld_running": False, "node_type": "login"}, [], "login"),
        ({"slurmctld_running": False, "node_type": "controller"}, [], "controller"),
        ({"slurmctld_running": True, "node_type": None}, [], "controller"),
        ({"slurmctld_running": False, "node_type": None}, ["n1.site"], "controller"),
        ({"slurmctld_running": None, "node_type": None}, [], "unknown"),
    ],
)
def test_roles(lab: Lab, role: dict[str, Any], controllers: list[str], expected: str) -> None:
    lab.run(2)
    lab.daemon._machines.controllers = controllers
    arrives(lab, machine=machine(role=role))
    assert lab.store.machine("n1").role == expected


def test_several_boots_while_the_daemon_was_away(lab: Lab) -> None:
    lab.run(100)
    lab.clock.sleep(600)
    for _ in range(2):
        lab.slurm.set_node("n1", "DOWN", "Node unexpectedly rebooted", "slurm")
        lab.slurm.reboot("n1")
        lab.clock.sleep(3600)
        lab.slurm.set_node("n1", "IDLE")
        lab.clock.sleep(3600)
    lab.restart()
    lab.run(100)
    boots = list(lab.store.machine("n1").of_kind("boot"))
    assert [(event.name, event.time) for event in boots] == [("unasked", BORN + 700), ("unasked", BORN + 700 + 7200)]


@pytest.mark.parametrize(
    ("states", "by"),
    [
        ([("IDLE+DRAIN", "ticket 4711 open, no reboot issued")], "alice"),
        ([("DOWN+REBOOT_ISSUED", "gpu lost : reboot issued")], "slurm"),  # resumed before it went down
        (
            [
                ("DOWN+REBOOT_ISSUED", "gpu lost : reboot issued"),
                ("DOWN", "gpu lost : reboot issued : reboot timed out"),
            ],
            "slurm",
        ),
    ],
)
def test_what_looks_like_a_reboot_and_was_none(lab: Lab, states: list[tuple[str, str]], by: str) -> None:
    lab.run(100)
    for state, reason in states:
        lab.clock.sleep(600)
        lab.slurm.set_node("n1", state, reason, by)
    lab.clock.sleep(600)
    lab.slurm.set_node("n1", "IDLE")
    lab.clock.sleep(3600)
    lab.restart()
    lab.run(100)
    assert events(lab, "n1", "boot") == []


def test_without_slurmdbd_polls_are_all_there_is(tmp_path: Path) -> None:
    lab = Lab(tmp_path, accounting=False)
    lab.run(40)
    lab.slurm.set_node("n1", "DOWN", "x")
    lab.clock.sleep(7200)
    lab.run(40)
    assert events(lab) == [("state", "UP"), ("state", "DOWN")]
    assert lab.store.notes("history") == ()
    lab.store.close()


def test_a_quiet_cluster_writes_once_a_minute(lab: Lab) -> None:
    lab.run(100)
    before = lab.store.writes
    lab.run(300)
    assert lab.store.writes - before <= 2 * 300 / 30 + 5  # heartbeat, and how far states are known
    assert lab.clock.now() - (lab.store.value(FILLED) or 0) < 70


def test_retention_counts_old_runs_and_forgets(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.config = dataclasses.replace(lab.config, history=History(retain_days=40, runs_days=3, daily_days=10))
    lab.restart()
    lab.run(40)
    for _ in range(3):
        arrives(lab, machine=machine())
    job = end_badly(lab, "n1")
    lab.run(70)
    lab.days(5)
    lab.run(2)
    found = [(event.name, event.data.get("count")) for event in lab.store.machine("n1").of_kind("job")]
    assert found == [("failed", None), ("well", 3)] or found == [("well", 3), ("failed", None)]
    assert lab.store.run("c", job, 1) is not None
    lab.days(40)
    lab.run(2)
    assert list(lab.store.machine("n1").of_kind("job")) == []
    assert [event.name for event in lab.store.machine("n1").of_kind("state")][:1] == ["UP"]
    lab.store.close()


def test_a_failed_run_is_no_fault(lab: Lab) -> None:
    lab.run(40)
    job = lab.slurm.submit("n1")
    lab.run(12)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.run(100)
    assert [event.name for event in lab.store.machine("n1").of_kind("job")] == ["failed"]
    assert events(lab, "n1", "fault") == []
