"""Every method of the store, on SQLite and on MariaDB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_slurm.history import events
from nccl_slurm.history.rows import CommentRow, NodeEventRow, NodeSeen, PathsRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.model import Step

HOSTILE = "'; DROP TABLE runs; --\n\x1b[31m<b>\"%s :x ? \\ 漢😀"


def run(raw_id: int = 42, number: int = 1, **fields: Any) -> RunRow:
    given: dict[str, Any] = {
        "cluster": "lab",
        "id": str(raw_id),
        "user": "alice",
        "nodes": ("n1", "n2"),
        "start": 1795968218.25 + raw_id,
    }
    return RunRow(raw_id=raw_id, run=number, **{**given, **fields})


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    full = run(
        uid=1000,
        name=HOSTILE,
        partition="main",
        state="FAILED",
        exit="1:0",
        derived_exit="0:9",
        submit=1795968218.0,
        end=1795968300.5,
        gpus=8,
        failed_node="n2",
        cancelled_by="0",
        steps=(Step("42.0", HOSTILE, "FAILED", 1, 0, ("n1",)),),
        status="settling",
        disposition="diagnose",
        stdout="/w/o ut",
        stderr="/w/err",
        workdir="/w",
        log_paths=("/w/logs", HOSTILE),
        comment='User\'s Own "Tag" KEEP',
        live_reason="NonZeroExitCode",
    )
    store.upsert_run(full)
    assert store.run("lab", 42, 1) == full
    store.upsert_run(full)
    assert store.runs_of_raw("lab", 42) == (full,)
    assert store.run("lab", 42, 2) is None
    assert store.run("LAB", 42, 1) is None
    assert full.as_job().steps == full.steps


def test_many_runs_at_once(store: Store) -> None:
    """More than go into one transaction; the later word on a run counts."""
    many = [run(number) for number in range(1, 600)]
    writes = store.writes
    store.upsert_runs([*many, run(7, gpus=3)])
    assert store.writes - writes == 3
    found = store.runs_of_all("lab", [1, 7, 599, 600])
    assert found == {1: [run(1)], 7: [run(7, gpus=3)], 599: [run(599)], 600: []}
    store.upsert_runs([])
    assert store.writes - writes == 3 and store.runs_of_all("lab", []) == {}


def test_a_run_changes_and_its_nodes_with_it(store: Store) -> None:
    store.upsert_run(run())
    store.upsert_run(run(nodes=("n2", "n3"), gpus=4))
    assert store.runs_of_raw("lab", 42) == (run(nodes=("n2", "n3"), gpus=4),)
    assert store.list_runs(node="n1") == ()
    assert store.list_runs(node="n3") == (run(nodes=("n2", "n3"), gpus=4),)


def test_what_slurmctld_says_now_keeps_what_it_said_before() -> None:
    before = run(stdout="/w/a", comment="mine", live_reason="x", state="FAILED", gpus=8)
    now = before.with_live(run(nodes=("n1",), stderr="/w/b"))
    assert (now.nodes, now.stdout, now.stderr, now.comment) == (("n1",), "/w/a", "/w/b", "mine")
    assert (now.live_reason, now.state, now.gpus) == ("x", "FAILED", 8)


def test_runs_by_the_ids_that_users_type(store: Store) -> None:
    first, second = run(24, id="19_0"), run(19, id="19_2")
    again = replace(second, run=2, start=(second.start or 0.0) + 500)
    other = run(20, id="20+0")
    near = run(190, id="190")
    odd = run(21, id="19%")
    for row in (again, first, second, other, near, odd):
        store.upsert_run(row)
    assert store.runs_of("19_0") == (first,)
    assert store.runs_of("19_2") == (second, again)
    assert store.runs_of("24") == (first,)
    assert store.runs_of("19") == (second, first, again)
    assert store.runs_of("20") == (other,)
    assert store.runs_of("190") == (near,)
    for unknown in ("7", "", HOSTILE, "19_%", "٣"):
        assert store.runs_of(unknown) == ()


def test_open_runs(store: Store) -> None:
    for number, status in enumerate(("pending", "settling", "live", "final"), start=1):
        store.upsert_run(run(number, status=status))
    assert [row.raw_id for row in store.open_runs()] == [1, 2, 3]


def test_lists(store: Store) -> None:
    old = run(1, start=100.0, end=200.0, disposition="diagnose")
    good = run(2, start=300.0, end=400.0, disposition="record", user="bob", nodes=("n9",))
    bad = run(3, start=500.0, end=600.0, disposition="diagnose", nodes=("n9",))
    running = run(4, start=700.0)
    for row in (good, old, running, bad):
        store.upsert_run(row)
    assert store.list_runs() == (running, bad, good, old)
    assert store.list_runs(failed=True) == (bad, old)
    assert store.list_runs(since=400.0) == (running, bad, good)
    assert store.list_runs(until=300.0) == (good, old)
    assert store.list_runs(node="n9", failed=True) == (bad,)
    assert store.list_runs(user="bob") == (good,)
    assert store.list_runs(limit=1) == (running,)
    assert store.list_runs(node="N9") == store.list_runs(user=HOSTILE) == ()
    assert store.nodes_seen() == (NodeSeen("n1", 2, 1, 700.0), NodeSeen("n2", 2, 1, 700.0), NodeSeen("n9", 2, 1, 600.0))


def record(node: str, written: float, **more: Any) -> dict[str, Any]:
    return {"schema": "nccl-slurm/node-record/1", "node": node, "written": written, "text": HOSTILE, **more}


def test_records(store: Store) -> None:
    assert store.add_record("lab", 42, 1, record("n1", 5.0), received=10.0)
    assert not store.add_record("lab", 42, 1, record("n1", 5.0), received=11.0, late=True)
    assert store.add_record("lab", 42, 1, record("n2", 5.0, big="x" * 300_000), received=10.0)
    assert store.add_record("lab", 42, 2, record("n1", 5.0), received=12.0)
    first, second = store.records("lab", 42, 1)
    assert (first.node, first.received, first.late, first.record) == ("n1", 10.0, False, record("n1", 5.0))
    assert len(second.record["big"]) == 300_000
    assert store.record_nodes("lab", 42, 1) == {"n1", "n2"}
    assert store.records("lab", 43, 1) == ()


def test_the_newest_record_of_a_node_counts(store: Store) -> None:
    store.add_record("lab", 42, 1, record("n1", 9.0), received=10.0)
    assert not store.add_record("lab", 42, 1, record("n1", 5.0), received=11.0)
    assert store.records("lab", 42, 1)[0].record["written"] == 9.0
    store.add_record("lab", 42, 1, record("n1", 20.0), received=12.0, late=True)
    (newest,) = store.records("lab", 42, 1)
    assert (newest.record["written"], newest.late) == (20.0, True)


def test_records_that_are_missing_of_runs_that_are_final(store: Store) -> None:
    end = 1795968300.0
    store.upsert_run(run(end=end, status="final"))
    store.upsert_run(run(43, end=end - 1000.0, status="final"))
    store.upsert_run(run(44, end=end, status="settling"))
    store.upsert_run(run(45, status="live"))
    store.add_record("lab", 43, 1, record("n1", 5.0), received=10.0)
    assert sorted(store.missing_records(end - 10.0)) == [(42, "n1"), (42, "n2")]
    store.upsert_run(run(43, end=end - 1000.0, status="final"))
    assert sorted(store.missing_records(end - 2000.0)) == [(42, "n1"), (42, "n2"), (43, "n2")]
    assert store.missing_records(end + 1.0) == ()


def test_outputs(store: Store) -> None:
    assert store.output("lab", 42, 1) is None
    store.save_output("lab", 42, 1, {"facts": [1]})
    store.save_output("lab", 42, 1, {"facts": [HOSTILE]})
    assert store.output("lab", 42, 1) == {"facts": [HOSTILE]}


def test_paths_of_the_users_last_good_run_on_the_same_machines(store: Store) -> None:
    def kept(raw_id: int, start: float, ways: dict[str, Any], *, machines: str = "a", **fields: Any) -> None:
        store.upsert_run(run(raw_id, start=start, **{"id": str(raw_id), "uid": 7, "state": "FAILED", **fields}))
        store.save_paths("lab", raw_id, 1, machines, ways)

    ways = {"i-1": {"the network": ["IB"]}}
    kept(1, 10.0, {}, state="COMPLETED")
    kept(1, 10.0, ways, state="COMPLETED")
    kept(2, 20.0, {})
    kept(3, 30.0, {}, uid=8, state="COMPLETED")
    kept(4, 40.0, {}, machines="b", state="COMPLETED")
    kept(5, 60.0, {}, state="COMPLETED")
    assert store.earlier_paths("lab", 7, "a", 60.0) == PathsRow("1", 1, ways)
    assert store.earlier_paths("lab", 7, "a", 10.0) is None
    assert store.earlier_paths("lab", 9, "a", 60.0) is None
    assert store.earlier_paths("other", 7, "a", 60.0) is None
    kept(1, 10.0, ways, state="FAILED")
    assert store.earlier_paths("lab", 7, "a", 60.0) == PathsRow("2", 1, {})


def test_reports_have_revisions(store: Store) -> None:
    assert store.report("lab", 42, 1) is None
    assert store.save_report("lab", 42, 1, {"summary": HOSTILE}, 10.0) == 1
    assert store.save_report("lab", 42, 1, {"summary": HOSTILE}, 20.0) == 1
    assert store.save_report("lab", 42, 1, {"summary": "changed"}, 30.0) == 2
    assert store.save_report("lab", 43, 1, {"summary": "other"}, 30.0) == 1
    newest, first = store.report("lab", 42, 1), store.report("lab", 42, 1, 1)
    assert newest is not None
    assert first is not None
    assert (newest.revision, newest.at, newest.report) == (2, 30.0, {"summary": "changed"})
    assert (first.at, first.report) == (10.0, {"summary": HOSTILE})
    assert store.report("lab", 42, 1, 9) is None


def test_node_events(store: Store) -> None:
    down = NodeEventRow("n1", 100.5, "DOWN+NOT_RESPONDING", HOSTILE, "slurm", "slurmdbd", "i-1")
    up = NodeEventRow("n1", 200.0, "UP")
    other = NodeEventRow("n2", 150.0, "UP+DRAIN", "fan", "root")
    assert store.add_node_events([down, other, up, down]) == 3
    assert store.add_node_events([up, down]) == 0
    assert store.add_node_events([]) == 0
    assert store.add_node_events([replace(up, reason="")]) == 1  # an empty reason is another fact than none
    assert store.node_events(["n1"], until=150.0) == (down,)
    assert store.node_events(["n1", "n2"], since=150.0, until=float("inf")) == (other, up, replace(up, reason=""))
    assert store.node_events()[:2] == (down, other)
    assert store.node_events([]) == ()
    assert store.node_events(["N1"]) == ()
    assert store.last_node_events() == (replace(up, reason=""), other)
    assert store.last_node_events(["n1"], until=199.0) == (down,)


def test_events_of_many_nodes(store: Store) -> None:
    names = [f"node{number}" for number in range(5000)]
    assert store.add_node_events(NodeEventRow(name, 1.0, "UP") for name in names) == 5000
    assert len(store.node_events(names)) == 5000
    assert len(store.last_node_events()) == 5000


def comment(store: Store, raw_id: int = 42) -> CommentRow:
    row = store.comment_of("lab", raw_id, 1)
    assert row is not None
    return row


def test_a_comment_from_queue_to_verified(store: Store) -> None:
    store.upsert_run(run(id="42_1", end=None))
    assert store.queue_comment("lab", 42, 1, HOSTILE, 10.0)
    assert store.due_comments(9.0) == ()
    (row,) = store.due_comments(10.0)
    assert (row.id, row.end, row.text, row.state, row.tries) == ("42_1", None, HOSTILE, "queued", 0)
    store.comment_later(row, 15.0, "accounting does not show the end yet")
    store.upsert_run(run(id="42_1", end=12.0))
    assert store.due_comments(14.0) == ()
    (row,) = store.due_comments(15.0)
    assert (row.tries, row.end, row.why) == (1, 12.0, "accounting does not show the end yet")
    store.comment_written(row, "comment", 75.0)
    assert store.due_comments(74.0) == ()
    (row,) = store.due_comments(75.0)
    assert (row.state, row.field, row.tries, row.why) == ("written", "comment", 2, "")
    store.comment_verified(row, "comment")
    assert store.due_comments(1e9) == ()
    assert not store.queue_comment("lab", 42, 1, HOSTILE, 80.0)
    assert comment(store).state == "verified"
    assert store.comment_counts() == {"verified": 1}


def test_a_new_text_begins_again_and_an_old_row_can_not_stop_it(store: Store) -> None:
    store.upsert_run(run())
    store.queue_comment("lab", 42, 1, "first", 10.0)
    (old,) = store.due_comments(10.0)
    assert store.queue_comment("lab", 42, 1, "second", 20.0)
    store.comment_verified(old, "comment")
    store.comment_given_up(old, "late")
    row = comment(store)
    assert (row.text, row.state, row.tries, row.next_try) == ("second", "queued", 0, 20.0)
    store.comment_given_up(row, "AdminComment is another tool's")
    assert store.due_comments(1e9) == ()
    assert [given_up.why for given_up in store.comments_given_up()] == ["AdminComment is another tool's"]


def test_the_longest_due_come_first(store: Store) -> None:
    for raw_id in (1, 2, 3):
        store.upsert_run(run(raw_id))
        store.queue_comment("lab", raw_id, 1, "same text", 10.0 - raw_id)
    assert [row.raw_id for row in store.due_comments(10.0, limit=2)] == [3, 2]


def test_notes_are_counted_and_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "NOTES_KEPT", 10)
    store.note("quarantine", HOSTILE, 10.0)
    store.note("quarantine", HOSTILE, 20.0)
    store.note("publish", "x" * 5000, 15.0)
    newest, other = store.notes()
    assert (newest.kind, newest.text, newest.at, newest.count) == ("quarantine", HOSTILE, 20.0, 2)
    assert len(other.text) == 500
    for number in range(30):
        store.note("nodes", f"failure {number}", 100.0 + number)
    kept = store.notes("nodes")
    assert len(kept) == 10
    assert kept[0].text == "failure 29"
    assert len(store.notes("quarantine")) == 1
    assert store.notes("nodes", since=1e9) == ()


def test_values(store: Store) -> None:
    assert store.value("heartbeat") is None
    store.set_value("heartbeat", 1795968218)
    store.set_value("heartbeat", 4102444800)  # the year 2100
    assert store.value("heartbeat") == 4102444800


def test_text_that_no_database_takes(store: Store) -> None:
    store.upsert_run(run(name="bytes \udcff\ud800 nul \0", stdout="/w/\udcff", user="u" * 400))
    found = store.run("lab", 42, 1)
    assert found is not None
    assert (found.name, found.stdout, found.user) == ("bytes \ufffd\ufffd nul \0", "/w/\ufffd", "u" * 255)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200))
def test_any_text_comes_back(store: Store, text: str) -> None:
    row = run(name=text, comment=text, log_paths=(text,), steps=(Step("1.0", text, "FAILED", 1, 0),))
    store.upsert_run(row)
    assert store.run("lab", 42, 1) == row


def test_a_failed_write_leaves_nothing_behind(store: Store) -> None:
    """The transaction of a public method is whole or not at all."""
    store.upsert_run(run())
    with pytest.raises(ZeroDivisionError), store._writing() as connection:
        connection.exec_driver_sql("update runs set status = 'final'")
        _ = 1 / 0
    assert [row.status for row in store.open_runs()] == ["pending"]


def test_a_job_has_the_comment_of_its_newest_run(store: Store) -> None:
    for number in (1, 2):
        store.upsert_run(RunRow("lab", 42, number, "42"))
    store.queue_comment("lab", 42, 1, "[first]", 10.0)
    store.queue_comment("lab", 42, 2, "[second]", 11.0)
    store.queue_comment("lab", 42, 1, "[first, judged again]", 12.0)
    assert [(row.run, row.text) for row in store.due_comments(20.0)] == [(2, "[second]")]
    assert [(row.run, row.why) for row in store.comments_given_up()] == [(1, "run 2 has the comment")]


def test_a_new_record_opens_a_run_again_and_one_that_is_there_does_not(store: Store) -> None:
    ended = RunRow("lab", 42, 1, "42", status="final", disposition="diagnose", nodes=("n1",))
    store.upsert_run(ended)
    store.add_record("lab", 42, 1, record("n1", 5.0), received=10.0)
    assert [run.status for run in store.open_runs()] == ["settling"]
    store.upsert_run(ended)
    store.add_record("lab", 42, 1, record("n1", 5.0), received=11.0)
    assert store.open_runs() == ()
