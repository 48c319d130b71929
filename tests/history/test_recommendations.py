"""The table of recommendations and the audit log, on both databases."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.history.store import Store
from nccl_slurm.review.decision import Person, accept, decline, line
from nccl_slurm.review.queue import by_daemon
from tests.collect.test_shared import record
from tests.history.conftest import server as server
from tests.history.conftest import url as url
from tests.history.test_open import RUN
from tests.review.test_queue import NOW, row

ALICE = Person("alice", 7001, None, "ctl")


def opened(store: Store, **changes: object) -> None:
    fresh = replace(row(), number=None, **changes)  # type: ignore[arg-type]
    assert store.save_recommendations([(fresh, by_daemon(fresh, "opened", NOW, "ctl"))])


def test_what_is_stored_comes_back(url: str) -> None:
    with Store.open(url) as store:
        opened(store, why="it’s | \x1b[31m'; drop table audit; --")
        (kept,) = store.active_recommendations()
        assert kept == replace(row(), number=1, why="it’s | \x1b[31m'; drop table audit; --")
        assert store.recommendation(1) == kept and store.recommendation(2) is None
        assert store.active_recommendations("n1") == (kept,) and store.active_recommendations("N1") == ()
        assert store.recommendations_on("n1") == (kept,)


def test_of_machines_and_of_a_run(url: str) -> None:
    with Store.open(url) as store:
        opened(store)
        opened(store, identity="i-2", node="n2", state="declined")
        opened(store, identity="i-3", node="n3", raw_id=43)
        assert [one.node for one in store.recommendations_of(["i-3", "i-9"], ("c", 42, 1))] == ["n1", "n2", "n3"]
        assert [one.node for one in store.recommendations_of([], ("c", 43, 1))] == ["n3"]


def test_who_decides_second_is_told_and_changes_nothing(url: str) -> None:
    with Store.open(url) as store:
        opened(store)
        (seen,) = store.active_recommendations()
        first, second = accept(seen, ALICE, "", NOW + 1), decline(seen, ALICE, "", NOW + 2)
        assert store.save_recommendations([(first, line(first, ALICE, NOW + 1))], was=[seen])
        assert not store.save_recommendations([(second, line(second, ALICE, NOW + 2))], was=[seen])
        assert [one.state for one in store.active_recommendations()] == ["accepted"]
        assert [(one.who, one.what, one.recommendation) for one in store.audit_log()] == [
            ("alice", "accepted", 1),
            ("nccl-slurm daemon", "opened", 1),
        ]


def test_what_is_closed_is_kept_so_long(url: str) -> None:
    with Store.open(url) as store:
        for number, state in enumerate(("open", "declined", "declined")):
            opened(store, identity=f"i-{number}", state=state, changed=NOW - number)
        store.forget_recommendations(NOW - 1.5)
        assert [store.recommendation(number) is None for number in (1, 2, 3)] == [False, False, True]
        assert len(store.audit_log()) == 3


def test_the_log_is_append_only(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        opened(store)
    file = sqlite3.connect(tmp_path / "store.db")
    for change in ("update audit set who = 'nobody'", "delete from audit"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            file.execute(change)
    assert file.execute("select count(*) from audit").fetchone() == (1,)
    file.close()


def test_jobs_lost_and_nodes_observed(url: str) -> None:
    with Store.open(url) as store:
        for raw_id, disposition, start in ((1, "diagnose", 50.0), (2, "record", 50.0), (3, "diagnose", 5.0)):
            run = replace(RUN, raw_id=raw_id, id=str(raw_id), nodes=("n1", "n2"), start=start, disposition=disposition)
            store.upsert_run(run)
        store.add_record(RUN.cluster, 1, RUN.run, record(node="n2"), received=1.0)
        assert store.runs_lost(["n1", "n9"], since=10.0) == {"n1": 1}
        assert store.runs_lost([], since=10.0) == {}
        assert store.observed(["n1", "n2"]) == {"n2"}
