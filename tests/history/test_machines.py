"""Machines, their names and their events, on SQLite and on MariaDB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.machine_events import Kept
from nccl_slurm.history.rows import Generation, NodeEventRow
from nccl_slurm.history.store import Store

HOSTILE = "'; DROP TABLE machines; --\n\x1b[31m<b>\"%s :x ? \\ 漢😀"
DAY = 86400.0
KEEP_ALL = Kept(float("-inf"), float("-inf"), float("-inf"))


def fault(at: float, **data: Any) -> MachineEvent:
    text = data.pop("text", "")
    return MachineEvent(at, "fault", "kernel.xid", "kernel", text, "gpu-hw-lost", 1.0, data or {"gpu": "a", "xid": 79})


def job(at: float, name: str = "well", **data: Any) -> MachineEvent:
    return MachineEvent(at, "job", name, "daemon", data={"job": "1", "run": 1, "nodes": 2, **data})


def named(store: Store, node: str = "n1", at: float = 100.0) -> int:
    store.name_machines([node], at)
    return store.machines_now()[node].number


def times(store: Store, node: str = "n1", kind: str = "fault") -> list[float]:
    return [event.time for event in store.machine(node).of_kind(kind)]


def test_events_come_back_as_they_were(store: Store) -> None:
    number = named(store)
    events = [
        replace(fault(200.0), text=HOSTILE[:300], data={"gpu": "0000:a1:00", "xid": 79, "link": [1, 2]}),
        MachineEvent(300.25, "boot", "asked", "poll", uncertainty_s=1.0, data={"by": "root", "reason": HOSTILE}),
        MachineEvent(400.0, "action", "accept", "review", data={"by": "alice", "note": HOSTILE}),
        job(500.0, "failed", named=True, **{"class": "gpu-hw-lost"}),
    ]
    assert store.add_machine_events(number, events) == events
    found = store.machine("n1")
    assert (found.identity, found.node, found.since, list(found.events)) == ("n1", "n1", 100.0, events)
    assert store.machine("n1", since=400.0).events == tuple(events[2:])


def test_who_had_trouble_at_that_time(store: Store) -> None:
    store.name_machines([f"n{number}" for number in range(6)], 100.0)
    numbers = [store.machines_now()[f"n{number}"].number for number in range(6)]
    unasked, asked = (MachineEvent(250.0, "boot", name, "poll") for name in ("unasked", "asked"))
    for number, had in zip(
        numbers, ([fault(200.0), fault(260.0)], [fault(150.0)], [unasked], [asked], [job(250.0)], []), strict=True
    ):
        store.add_machine_events(number, had)
    assert store.in_trouble(190.0, 300.0) == {"n0": 260.0, "n2": 250.0}
    assert store.in_trouble(190.0, 250.0) == {"n0": 200.0, "n2": 250.0}
    store.hand_over("n0", "i-9", "dmi-uuid", 500.0, replaced=True)
    assert store.in_trouble(190.0, 300.0) == {"n2": 250.0}


def test_runs_and_states_of_late_alone(store: Store) -> None:
    """Faults and boots of all times tell what was tried; the rest is most of a past."""
    number = named(store)
    boot = MachineEvent(210.0, "boot", "asked", "poll", uncertainty_s=1.0)
    store.add_machine_events(number, [fault(200.0), boot, job(300.0), job(500.0, job="2")])
    store.add_node_events([NodeEventRow("n1", 250.0, "DOWN"), NodeEventRow("n1", 450.0, "UP")])
    (found,) = store.machines(["n1"], lately=400.0)
    assert [(event.kind, event.time) for event in found.events] == [
        ("fault", 200.0),
        ("boot", 210.0),
        ("state", 450.0),
        ("job", 500.0),
    ]
    (found,) = store.machines(["n1"], 205.0, lately=100.0)
    assert [event.time for event in found.events] == [210.0, 250.0, 300.0, 450.0, 500.0]


def test_a_name_that_nobody_has_seen(store: Store) -> None:
    store.add_node_events([NodeEventRow("n9", 5.0, "DOWN", "Not responding", "slurm")])
    found = store.machine("n9")
    assert (found.identity, found.role, found.since) == ("n9", "unknown", None)
    assert [(event.name, event.data["id"]) for event in found.events] == [("DOWN", "not-responding")]
    assert store.machine(HOSTILE).events == () and store.machine_of(HOSTILE) is None
    assert list(store.machines()) == []


def test_one_event_once(store: Store) -> None:
    number = named(store)
    assert len(store.add_machine_events(number, [fault(200.0), fault(203.0), fault(207.5), fault(213.0)])) == 2
    assert [event.data.get("count") for event in store.machine("n1").events] == [3, None]
    assert store.add_machine_events(number, [fault(195.5), fault(211.0), fault(218.0)]) == []
    assert len(store.add_machine_events(number, [fault(189.0), fault(219.0)])) == 2
    other = [fault(200.0, gpu="b", xid=79), fault(200.0, gpu="a", xid=48)]
    assert store.add_machine_events(number, other) == other


def test_states_are_those_of_the_name_while_the_machine_had_it(store: Store) -> None:
    named(store)
    edges = [
        NodeEventRow("n1", 150.0, "UP+DRAIN", "NHC: check_hw_mcelog: x", "root"),
        NodeEventRow("n1", 250.0, "UP", None, None, "slurmdbd"),
        NodeEventRow("n2", 160.0, "DOWN", "x", "root"),
    ]
    store.add_node_events(edges)
    store.hand_over("n1", "i-2", "board_asset_tag", 200.0, replaced=True)
    (state,) = store.machine_of("n1").of_kind("state")  # type: ignore[union-attr]
    assert (state.name, state.time, state.text) == ("UP+DRAIN", 150.0, "NHC: check_hw_mcelog: x")
    told = {"reason": "NHC: check_hw_mcelog: x", "by": "root", "id": "nhc-hardware", "class": None}
    assert state.data == {**told, "owner": "nhc", "hardware": True}
    (state,) = store.machine("n1").of_kind("state")
    assert (state.name, state.source, state.data) == ("UP", "slurmdbd", {"reason": None, "by": None})


def test_a_replaced_machine_starts_clean_and_the_old_one_stays(store: Store) -> None:
    number = named(store)
    store.identify(number, "i-1", "board_asset_tag")
    old = [fault(150.0), MachineEvent(498.0, "boot", "unasked", "poll")]
    store.add_machine_events(number, [*old, fault(600.0)])
    store.hand_over("n1", "i-2", "board_asset_tag", 500.0, replaced=True)
    new = store.machine("n1")
    assert (new.identity, new.since) == ("i-2", 500.0)
    assert [(event.kind, event.time) for event in new.events] == [("replaced", 500.0), ("fault", 600.0)]
    before = store.machine_of("i-1")
    assert before is not None and before.node == "n1"
    assert [(event.kind, event.name) for event in before.events] == [("fault", "kernel.xid"), ("replaced", "gone")]
    assert before.events[-1].data == {"other": "i-2"}
    assert store.generations("n1") == (Generation("n1", "i-1", 100.0, 500.0), Generation("n1", "i-2", 500.0))
    store.hand_over("n1", "i-2", "board_asset_tag", 500.0, replaced=True)
    assert store.machine("n1") == new


def test_a_machine_that_comes_back_has_its_own_past(store: Store) -> None:
    store.identify(named(store), "i-1", "board_asset_tag")
    store.add_events_of_node("n1", 150.0, [fault(150.0)])
    store.hand_over("n1", "i-2", "board_asset_tag", 500.0, replaced=True)
    store.hand_over("n1", "i-1", "board_asset_tag", 900.0, replaced=True)
    assert times(store) == [150.0]
    assert [(g.identity, g.since, g.until) for g in store.generations("n1")] == [
        ("i-1", 100.0, 500.0),
        ("i-2", 500.0, 900.0),
        ("i-1", 900.0, None),
    ]
    assert store.add_events_of_node("n1", 700.0, [fault(700.0)]) != []
    assert times(store) == [150.0]


def test_a_machine_that_moves_takes_its_past_along(store: Store) -> None:
    store.identify(named(store, "n1"), "i-1", "board_asset_tag")
    store.add_events_of_node("n1", 150.0, [fault(150.0)])
    named(store, "n2")
    store.hand_over("n2", "i-1", "board_asset_tag", 500.0, replaced=False)
    assert times(store, "n2") == [150.0] and times(store, "n1") == []
    assert [(g.node, g.since, g.until) for g in store.places("i-1")] == [("n1", 100.0, 500.0), ("n2", 500.0, None)]
    assert "n1" not in store.machines_now()


def test_a_name_that_is_free_again_is_that_of_a_new_machine(store: Store) -> None:
    """Twice a machine that nobody knows by more than the name, and between them one that moved away."""
    store.add_node_events([NodeEventRow("n1", 40.0, "DOWN", "x")])
    named(store, "n1")
    store.add_events_of_node("n1", 60.0, [fault(60.0)])
    store.hand_over("n1", "i-1", "board_asset_tag", 200.0, replaced=False)
    named(store, "n2")
    store.hand_over("n2", "i-1", "board_asset_tag", 500.0, replaced=False)
    named(store, "n1", 600.0)
    new = store.machine("n1")
    assert (new.identity, new.since, new.events) == ("n1#2", 600.0, ())
    assert [(g.identity, g.since, g.until) for g in store.generations("n1")] == [
        ("n1", 40.0, 200.0),
        ("i-1", 200.0, 500.0),
        ("n1#2", 600.0, None),
    ]
    assert [event.kind for event in store.machine_of("n1").events] == ["state", "fault"]  # type: ignore[union-attr]


def test_what_was_before_a_known_identity_is_another_machine(store: Store) -> None:
    store.identify(named(store, "n1"), "i-1", "board_asset_tag")
    named(store, "n2")
    for node in ("n1", "n2"):
        store.extend_back(node, 50.0)
        store.extend_back(node, 70.0)
    assert [(g.identity, g.since, g.until) for g in store.generations("n1")] == [
        ("n1", 50.0, 100.0),
        ("i-1", 100.0, None),
    ]
    assert store.generations("n2") == (Generation("n2", "n2", 50.0),)


def test_an_outcome_is_changed_by_a_new_verdict(store: Store) -> None:
    store.name_machines(["n1", "n2"], 100.0)
    store.set_outcomes({"n1": job(300.0), "n2": job(300.0)}, 200.0)
    store.set_outcomes({"n1": job(300.0, "failed", named=True), "n2": job(300.0, "failed", named=False)}, 200.0)
    store.set_outcomes({"n1": job(400.0, job="2")}, 50.0)
    store.set_outcomes({"n1": job(90.0, job="3")}, 50.0)
    assert [(event.time, event.name) for event in store.machine("n1").events] == [(300.0, "failed"), (400.0, "well")]
    assert [event.data["named"] for event in store.machine("n2").events] == [False]
    store.set_outcomes({"n1": job(350.0, job="4"), "n2": job(300.0)}, 200.0, counted_before=380.0)
    assert times(store, "n1", "job") == [300.0, 400.0]
    assert [event.name for event in store.machine("n2").events] == ["well"]
    store.forget_outcomes({"n1": job(300.0), "n2": job(300.0)})
    assert times(store, "n1", "job") == [400.0] and times(store, "n2", "job") == []


def test_an_outcome_is_that_of_the_machine_on_which_the_run_began(store: Store) -> None:
    store.identify(named(store), "i-1", "board_asset_tag")
    store.hand_over("n1", "i-2", "board_asset_tag", 500.0, replaced=True)
    store.set_outcomes({"n1": job(510.0, "failed", named=False)}, 400.0)
    assert times(store, "n1", "job") == []
    assert [event.time for event in store.machine_of("i-1").of_kind("job")] == [510.0]  # type: ignore[union-attr]


def test_old_runs_are_counted_and_keep_their_number(store: Store) -> None:
    number = named(store, at=0.0)
    runs = [job(at * DAY / 4, job=str(at), nodes=1 + at % 2) for at in range(160)]  # 40 days, 4 a day
    store.set_outcomes({}, None)
    for run in runs:
        store.set_outcomes({"n1": run}, run.time)
    store.add_machine_events(number, [fault(1.5 * DAY), job(1.25 * DAY, "failed", job="x", named=False)])
    kept = Kept(daily=38 * DAY, monthly=35 * DAY, gone=float("-inf"))
    for _ in range(2):
        store.tidy_machines([number], kept)
        well = [event for event in store.machine("n1").of_kind("job") if event.name == "well"]
        assert sum(event.data.get("count", 1) for event in well) == len(runs)
        counted = [event for event in well if "count" in event.data]
        # a month of two sizes, then eight days of two sizes, then two days one by one
        assert [len(counted), len(well) - len(counted)] == [2 + 8 * 2, 8]
        assert {event.data["nodes"]: event.data["count"] for event in counted[:2]} == {1: 60, 2: 60}
    assert times(store) == [1.5 * DAY]
    assert [event.name for event in store.machine("n1").of_kind("job")].count("failed") == 1


def test_what_is_too_old_goes_and_the_state_of_now_stays(store: Store) -> None:
    number = named(store)
    store.identify(number, "i-1", "board_asset_tag")
    store.add_machine_events(number, [fault(150.0)])
    store.hand_over("n1", "i-2", "board_asset_tag", 500.0, replaced=True)
    now = store.machines_now()["n1"].number
    store.add_machine_events(now, [fault(600.0), fault(900.0)])
    for at, state in ((400.0, "DOWN"), (550.0, "UP"), (650.0, "UP+DRAIN"), (900.0, "UP")):
        store.add_node_events([NodeEventRow("n1", at, state)])
    assert store.machine_numbers(0, 10) == (number, now)
    store.tidy_machines([number, now], Kept(float("-inf"), float("-inf"), 700.0))
    assert store.machine_of("i-1") is None and store.machine_numbers(0, 10) == (now,)
    assert times(store) == [900.0]
    assert [event.time for event in store.node_events(["n1"])] == [650.0, 900.0]


def test_keeping_all_changes_nothing(store: Store) -> None:
    number = named(store)
    store.add_machine_events(number, [fault(150.0)])
    before = store.machine("n1")
    store.tidy_machines([number], KEEP_ALL)
    assert store.machine("n1") == before


def test_all_machines_of_now(store: Store) -> None:
    store.name_machines([f"n{number}" for number in range(600)], 100.0)
    store.add_events_of_node("n7", 150.0, [fault(150.0), fault(250.0)])
    found = list(store.machines())
    assert len(found) == 600 and [one.node for one in found] == sorted(one.node for one in found)
    assert [(one.node, len(one.events)) for one in found if one.events] == [("n7", 2)]
    assert [(one.node, len(one.events)) for one in store.machines(["n7", "n8"], since=200.0)] == [("n7", 1), ("n8", 0)]


def test_fields_of_a_machine(store: Store) -> None:
    number = named(store)
    store.update_machines({number: {"role": "compute", "boot_id": "b", "boot_time": 90.5, "seen": 200.0}})
    row = store.machines_now()["n1"]
    assert (row.role, row.boot_id, row.boot_time, row.seen, row.slurmd_start) == ("compute", "b", 90.5, 200.0, None)
    assert store.readings(number) == {}
    store.update_machines({number: {"readings": {"at": 1.0, "gpus": {}}}})
    assert store.readings(number) == {"at": 1.0, "gpus": {}}
    store.share_identity("n1")
    assert store.machines_now()["n1"].shared and store.machine_row("n1").shared  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["boot", "replaced", "action"])
def test_other_kinds_are_told_apart_by_their_time(store: Store, kind: str) -> None:
    number = named(store)
    one = MachineEvent(1000.0, kind, "x", "poll", data={"by": "root"})
    assert store.add_machine_events(number, [one, replace(one, time=1000.5)]) == [one]
    later = replace(one, time=2000.0)
    assert store.add_machine_events(number, [later]) == [later]


def test_an_older_store_gets_the_tables_though_a_first_try_died_half_way(url: str) -> None:
    """MariaDB commits each change of a table by itself."""
    with Store.open(url) as store:
        store.add_node_events([NodeEventRow("n1", 50.0, "UP")])
        with store._writing() as connection:
            for table in ("machine_events", "generations"):
                connection.execute(text(f"drop table {table}"))
            connection.execute(text("update meta set value = 1 where name = 'schema_version'"))
    with Store.open(url) as store:
        named(store)
        store.add_events_of_node("n1", 150.0, [fault(150.0)])
        assert (store.machine("n1").since, times(store)) == (50.0, [150.0])
