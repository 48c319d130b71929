"""Opening a store: files, versions, locks, read-only readers, and the one line that a user gets when it fails."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from nccl_slurm.errors import StoreBusy, StoreError, StoreTooNew
from nccl_slurm.history import database
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.schema import MIGRATIONS
from nccl_slurm.history.store import Store
from tests.history.mariadb import Server

VERSION_1 = (Path(__file__).parent / "version_1.sql").read_text()
RUN = RunRow(cluster="lab", raw_id=42, run=1, id="42", nodes=("n1",), start=1.0)
LATEST = len(MIGRATIONS) + 1


def at(path: Path) -> str:
    return f"sqlite:///{path}"


def changed(sql: str) -> Callable[[Connection], None]:
    def migrate(connection: Connection) -> None:
        connection.execute(text(sql))

    return migrate


def failing(_: Connection) -> None:
    raise sqlite3.OperationalError("power cut")


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


# -- versions


def test_a_migrated_store_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    """Whoever changes a table must write a migration: version 1 is frozen."""
    version_1(tmp_path / "old.db")
    Store.open(at(tmp_path / "old.db")).close()
    Store.open(at(tmp_path / "new.db")).close()
    assert _made(tmp_path / "old.db") == _made(tmp_path / "new.db")
    assert len(_made(tmp_path / "new.db")) > VERSION_1.count("CREATE")


def _made(path: Path) -> list[str]:
    with raw(path) as connection:
        made = [row[0] for row in connection.execute("select sql from sqlite_master where sql is not null")]
    return sorted(" ".join(sql.replace('"', "").split()) for sql in made)


@pytest.mark.parametrize("status", ["settling", "final"])
@pytest.mark.parametrize("why", ["the job switched capture off (NCCL_SLURM_CAPTURE=off)", "no such file"])
def test_a_run_that_settled_during_the_upgrade_keeps_its_lines_to_itself(url: str, status: str, why: str) -> None:
    with Store.open(url, migrations=()) as store:
        store.upsert_run(dataclasses.replace(RUN, status=status))
        store.add_record("lab", 42, 1, {"node": "n1", "written": 1.0, "gaps": [{"why": why}]}, received=1.0)
        store.upsert_run(dataclasses.replace(RUN, status=status))
    for _ in range(2):  # the second time as if the first had died before it was done
        with Store.open(url) as store:
            assert store.is_quiet("lab", 42, 1) is (status == "settling" and "CAPTURE=off" in why)
        with Store.open(url) as store, store._writing() as connection:
            connection.execute(text("update meta set value = 1 where name = 'schema_version'"))


def test_a_migration_that_died_after_its_table_was_made_runs_again(tmp_path: Path) -> None:
    """MariaDB commits each change of a table by itself."""
    Store.open(at(tmp_path / "store.db")).close()
    with raw(tmp_path / "store.db") as connection:
        connection.execute("update meta set value = 1 where name = 'schema_version'")
    with Store.open(at(tmp_path / "store.db")) as store:
        assert store.earlier_paths("lab", 1, "", 1.0) is None


def version_1(path: Path) -> None:
    with raw(path) as connection:
        connection.executescript(VERSION_1)
        connection.execute("insert into meta values ('schema_version', 1)")
        connection.execute(
            "insert into runs (cluster, raw_id, run, id, nodes, start, steps, status, log_paths) "
            "values ('lab', 42, 1, '42', '[\"n1\"]', 1.0, '[]', 'pending', '[]')"
        )


def test_a_store_of_version_1_opens_with_what_it_holds(tmp_path: Path) -> None:
    version_1(tmp_path / "store.db")
    with Store.open(at(tmp_path / "store.db")) as store:
        assert store.run("lab", 42, 1) == RUN
    with raw(tmp_path / "store.db") as connection:
        assert connection.execute("select value from meta where name = 'schema_version'").fetchall() == [(LATEST,)]


def test_migrations_run_once_and_in_order(url: str) -> None:
    with Store.open(url, migrations=()) as store:
        store.upsert_run(RUN)
    steps = (changed("create table added (number integer)"), changed("insert into added values (3)"))
    for _ in range(2):
        with Store.open(url, migrations=steps) as store, store._reading() as connection:
            assert connection.scalar(text("select count(*) from added")) == 1
            assert store.run("lab", 42, 1) == RUN
            assert connection.scalar(text("select value from meta where name = 'schema_version'")) == 3


def test_a_migration_that_dies_changes_nothing(tmp_path: Path) -> None:
    version_1(tmp_path / "store.db")
    steps = (changed("create table added (number integer)"), changed("no such statement"))
    with pytest.raises(StoreError, match="syntax error"):
        Store.open(at(tmp_path / "store.db"), migrations=steps)
    with raw(tmp_path / "store.db") as connection:
        assert connection.execute("select value from meta").fetchall() == [(1,)]
        assert connection.execute("select count(*) from sqlite_master where name = 'added'").fetchall() == [(0,)]
    Store.open(at(tmp_path / "store.db"), migrations=steps[:1]).close()


def test_a_newer_store_is_refused(url: str) -> None:
    Store.open(url, migrations=(changed("create table added (number integer)"),)).close()
    with pytest.raises(StoreTooNew, match=r"written by a newer nccl-slurm .*upgrade nccl-slurm on this host"):
        Store.open(url, migrations=())
    with pytest.raises(StoreTooNew):
        Store.open(url, migrations=(), read_only=True)


def test_readers_do_not_migrate(url: str) -> None:
    Store.open(url, migrations=()).close()
    with pytest.raises(
        StoreError, match="has schema 1, this nccl-slurm needs 2; start the daemon of this version once"
    ):
        Store.open(url, read_only=True, migrations=(failing,))


# -- SQLite's files


def test_the_file_is_not_for_everybody(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Store.open(at(tmp_path / "store.db")).close()
    finally:
        os.umask(old)
    assert (tmp_path / "store.db").stat().st_mode & 0o777 == 0o640


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a b#é"
    folder.mkdir()
    for _ in range(2):
        with Store.open(at(folder / "store.db")) as store:
            store.upsert_run(RUN)
    with Store.open(at(folder / "store.db"), read_only=True) as reader:
        assert reader.run("lab", 42, 1) == RUN


def test_readers_change_nothing_and_see_what_was_written(tmp_path: Path) -> None:
    with Store.open(at(tmp_path / "store.db")) as store:
        store.upsert_run(RUN)
        with Store.open(at(tmp_path / "store.db"), read_only=True) as reader:
            assert reader.run("lab", 42, 1) == RUN
            store.note("x", "y", 1.0)
            assert len(reader.notes()) == 1
            with pytest.raises(StoreError, match="readonly database"):
                reader.upsert_run(RUN)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_a_reader_that_may_write_nothing_works_without_a_writer(tmp_path: Path) -> None:
    """As a member of access.admin_group does while the daemon is stopped."""
    Store.open(at(tmp_path / "store.db")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]
    tmp_path.chmod(0o755)
    (tmp_path / "store.db").chmod(0o644)
    reading = multiprocessing.get_context("fork").Process(target=_read_as_nobody, args=(at(tmp_path / "store.db"),))
    for parent in tmp_path.parents[: len(tmp_path.parents) - 2]:  # one more below each worker of xdist
        parent.chmod(0o755)
    reading.start()
    reading.join()
    assert reading.exitcode == 0


def _read_as_nobody(url: str) -> None:
    os.setgid(65534)
    os.setuid(65534)
    with Store.open(url, read_only=True) as reader:
        os._exit(0 if reader.open_runs() == () else 1)


def test_a_store_that_a_reader_holds_can_still_be_closed(tmp_path: Path) -> None:
    store = Store.open(at(tmp_path / "store.db"))
    with Store.open(at(tmp_path / "store.db"), read_only=True) as reader, reader._reading():
        store.close()
        assert reader.open_runs() == ()
    Store.open(at(tmp_path / "store.db")).close()


def test_a_reader_works_without_a_writer(tmp_path: Path) -> None:
    Store.open(at(tmp_path / "store.db")).close()
    with Store.open(at(tmp_path / "store.db"), read_only=True) as reader:
        assert reader.open_runs() == ()


@pytest.mark.parametrize("read_only", [False, True])
def test_files_that_are_no_store(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "store.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(StoreError, match="is damaged or no store; move it away"):
        Store.open(at(tmp_path / "store.db"), read_only=read_only)
    with pytest.raises(StoreError, match=r"its folder does not exist; make .*/missing or set paths.state"):
        Store.open(at(tmp_path / "missing" / "store.db"), read_only=read_only)


def test_no_store_yet(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist yet; the daemon makes it when it starts"):
        Store.open(at(tmp_path / "store.db"), read_only=True)
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no database URL"),
        ("nonsense", "no database URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("postgresql://u:geheim@host/x", "postgresql is not supported; use SQLite or MariaDB"),
    ],
)
def test_urls_that_are_none(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        Store.open(url)
    assert "geheim" not in str(caught.value)


def test_a_locked_store_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(at(tmp_path / "store.db")).close()
    monkeypatch.setattr(database, "_BUSY_S", 0.1)
    with raw(tmp_path / "store.db") as other, Store.open(at(tmp_path / "store.db"), read_only=True) as reader:
        other.execute("begin immediate")
        with pytest.raises(StoreBusy, match="is held by another process; try again"):
            Store.open(at(tmp_path / "store.db"))
        assert reader.open_runs() == ()  # readers are not held up
        other.execute("rollback")
    Store.open(at(tmp_path / "store.db")).close()


def _write_for_ever(url: str, ready: str) -> None:
    with Store.open(url) as store:
        for number in range(1, 1_000_000):
            store.upsert_run(RunRow(cluster="lab", raw_id=number, run=1, id=str(number), nodes=("n1", "n2")))
            Path(ready).write_text(str(number))


def test_a_writer_that_is_killed_loses_nothing_that_it_finished(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = multiprocessing.get_context("spawn").Process(
        target=_write_for_ever, args=(at(tmp_path / "store.db"), str(ready))
    )
    child.start()
    deadline = time.monotonic() + 30
    while not (ready.exists() and ready.read_text() not in ("", "1", "2")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    finished = int(ready.read_text() or 3)
    with Store.open(at(tmp_path / "store.db")) as store:
        runs = store.list_runs(node="n2", limit=1_000_000)
        assert {run.raw_id for run in runs} >= set(range(1, finished + 1))
        assert len(store.open_runs()) == len(runs)  # no run without its nodes


# -- MariaDB


@pytest.mark.mariadb
def test_a_database_that_is_missing_or_not_granted(server: Server) -> None:
    with pytest.raises(StoreError, match=r"Unknown database.*create the database and grant it"):
        Store.open(server.url("nowhere"))
    server.run("create database secret", "create user eve@localhost identified by 'other'")
    with pytest.raises(StoreError, match=r"Access denied.*create the database and grant it") as caught:
        Store.open(server.url("secret", "eve"), password="geheim")
    assert "geheim" not in str(caught.value)


@pytest.mark.mariadb
def test_a_password_of_its_own(server: Server) -> None:
    server.run(
        "create database theirs",
        "create user bob@localhost identified by 'p@ss/w:r%d'",
        "grant all on theirs.* to bob@localhost",
    )
    with Store.open(server.url("theirs", "bob"), password="p@ss/w:r%d") as store:
        store.upsert_run(RUN)
        assert "p@ss" not in store.where
    with Store.open(server.url("theirs", "bob"), password="p@ss/w:r%d", read_only=True) as reader:
        assert reader.run("lab", 42, 1) == RUN


@pytest.mark.mariadb
def test_a_row_that_another_process_holds_is_busy(server: Server) -> None:
    server.run("create database held")
    with Store.open(server.url("held")) as store, Store.open(server.url("held")) as other:
        store.upsert_run(RUN)
        with other._writing() as connection:
            connection.execute(text("select * from runs for update"))
            with pytest.raises(StoreBusy, match="is held by another process"):
                store.upsert_run(RUN)
        store.upsert_run(RUN)


@pytest.mark.mariadb
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_goes_and_comes_back(server: Server) -> None:
    """PyMySQL leaves its socket open where nobody answers."""
    server.run("create database again")
    with Store.open(server.url("again")) as store:
        store.upsert_run(RUN)
        server.stop()
        try:
            with pytest.raises(StoreError, match=r"Can't connect|Lost connection|gone away") as caught:
                store.run("lab", 42, 1)
            assert "\n" not in str(caught.value)
            del caught
        finally:
            server.start()
        gc.collect()
        assert store.run("lab", 42, 1) == RUN
