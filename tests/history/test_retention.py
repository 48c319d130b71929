"""What a store forgets, on both databases: whole runs, or their documents alone; nothing that is not final."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from nccl_slurm.history.rows import NodeEventRow, RunRow
from nccl_slurm.history.schema import comments, metadata, node_records, outputs, paths, quiet, reports, run_nodes
from nccl_slurm.history.store import Store
from tests.collect.test_shared import record

OLD = RunRow("c", 1, 1, "1", nodes=("n1", "n2"), start=100.0, end=200.0, status="final", user="alice")
NEW = replace(OLD, raw_id=2, id="2", start=900.0, end=1000.0)
OPEN = replace(OLD, raw_id=3, id="3", end=None, status="settling")
LONG = replace(OLD, raw_id=4, id="4", end=1000.0)
TABLES = (run_nodes, node_records, outputs, paths, quiet, reports, comments)


def fill(store: Store, *runs: RunRow) -> None:
    for run in runs:
        key = (run.cluster, run.raw_id, run.run)
        store.upsert_run(run)
        store.add_record(*key, record(job_id=run.raw_id), received=1.0, quiet=True)
        store.save_output(*key, {"facts": [run.raw_id]})
        store.save_paths(*key, "machines", {})
        store.save_report(*key, {"job": run.raw_id}, 1.0)
        store.queue_comment(*key, "text", 1.0)


def rows(store: Store, raw_id: int) -> dict[str, int]:
    with store._reading() as connection:
        return {
            table.name: connection.scalar(select(func.count()).select_from(table).where(table.c.raw_id == raw_id)) or 0
            for table in TABLES
        }


FULL = {"run_nodes": 2, "node_records": 1, "outputs": 1, "paths": 1, "quiet": 1, "reports": 1, "comments": 1}


def test_old_runs_go_with_all_that_is_theirs(store: Store) -> None:
    fill(store, OLD, NEW, OPEN, LONG)
    assert store.old_runs(500.0, 10) == (OLD,)
    store.forget_runs([("c", 1, 1)])
    assert store.run("c", 1, 1) is None
    assert rows(store, 1) == dict.fromkeys(FULL, 0)
    for run in (NEW, OPEN, LONG):
        assert store.run("c", run.raw_id, 1) == run
        assert rows(store, run.raw_id) == FULL


def test_documents_go_and_the_report_stays(store: Store) -> None:
    fill(store, OLD, NEW, OPEN, LONG)
    assert store.forget_documents(500.0, 10) == 1
    assert rows(store, 1) == {**FULL, "node_records": 0, "outputs": 0}
    assert [rows(store, run.raw_id) for run in (NEW, OPEN, LONG)] == [FULL] * 3
    assert store.forget_documents(500.0, 10) == 0


def test_batches_take_the_oldest_first(store: Store) -> None:
    fill(store, *(replace(OLD, raw_id=n, id=str(n), start=100.0 - n) for n in range(1, 6)))
    assert [run.raw_id for run in store.old_runs(500.0, 2)] == [5, 4]
    assert [store.forget_documents(500.0, 2) for _ in range(4)] == [2, 2, 1, 0]


def test_notes_go_and_events_of_nodes_stay(store: Store) -> None:
    store.note("x", "old", 100.0)
    store.note("x", "new", 900.0)
    store.add_node_events([NodeEventRow("n1", 100.0, "DOWN")])
    store.forget_notes(500.0)
    assert [note.text for note in store.notes()] == ["new"]
    assert len(store.node_events()) == 1


@pytest.mark.parametrize("table", [table.name for table in metadata.sorted_tables if "raw_id" in table.c])
def test_no_table_of_runs_is_left_out(store: Store, table: str) -> None:
    """A table that is added needs its place in history/retention.py."""
    fill(store, OLD)
    store.forget_runs([("c", 1, 1)])
    with store._reading() as connection:
        assert connection.scalar(select(func.count()).select_from(metadata.tables[table])) == 0
