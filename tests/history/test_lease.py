"""The lease on a shared store: one daemon at a time, by the database's clock, and no write of one that has lost it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from nccl_slurm.errors import LeaseLost, StoreBusy, StoreError
from nccl_slurm.history.holding import is_free
from nccl_slurm.history.rows import Claim, Holder, RunRow
from nccl_slurm.history.schema import MIGRATIONS
from nccl_slurm.history.store import Store
from tests.cluster.processes import wait_until
from tests.history.mariadb import Server

RUN = RunRow(cluster="lab", raw_id=42, run=1, id="42", nodes=("n1",), start=1.0)
TERM = 600.0
ONE, OTHER = Claim("token of one", "ctl1", 11, "place 1"), Claim("token of other", "ctl2", 22, "place 2")
_NUMBERS = iter(range(1000))

pytestmark = pytest.mark.mariadb


@pytest.fixture
def url(server: Server) -> str:
    name = f"leased{next(_NUMBERS)}"
    server.run(f"create database {name}")
    return server.url(name)


@pytest.fixture
def first(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


@pytest.fixture
def second(url: str, first: Store) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


def change(store: Store, sql: str) -> None:
    with store._transaction(write=True) as connection:
        connection.execute(text(sql))


def run_out(store: Store) -> None:
    change(store, "update lease set until = until - 100000")


@pytest.mark.parametrize(
    ("holder", "free"),
    [
        (None, True),
        (Holder("", "ctl1", 11, "place 1", 0.0, -5.0), True),
        (Holder("x", "ctl1", 11, "place 1", 0.0, 5.0), False),
        (Holder("x", "ctl1", 11, "place 1", 0.0, 0.0), True),
        (Holder("x", "ctl1", 11, "place 2", 0.0, 5.0), True),
        (Holder("token of other", "ctl1", 11, "place 1", 0.0, 5.0), True),
    ],
)
def test_who_may_take_it(holder: Holder | None, free: bool) -> None:
    assert is_free(holder, OTHER) is free


def test_one_has_it_until_it_gives_it_back(first: Store, second: Store) -> None:
    assert first.holder() is None
    assert first.take_lease(ONE, TERM) is None
    found = second.take_lease(OTHER, TERM)
    assert found is not None and (found.host, found.pid) == ("ctl1", 11) and TERM - 60 < found.left_s <= TERM
    first.upsert_run(RUN)
    first.release_lease(ONE)
    assert second.holder() is None
    assert second.take_lease(OTHER, TERM) is None
    second.upsert_run(RUN)


def test_one_that_has_lost_it_writes_nothing(first: Store, second: Store) -> None:
    assert first.take_lease(ONE, TERM) is None
    run_out(second)
    first.upsert_run(RUN)  # nobody took it: it is ours yet
    first.renew_lease(ONE, TERM)
    run_out(second)
    assert second.take_lease(OTHER, TERM) is None
    with pytest.raises(LeaseLost, match=r"the daemon on ctl2 \(pid 22\) has taken over"):
        first.set_value("heartbeat", 7)
    with pytest.raises(LeaseLost):
        first.renew_lease(ONE, TERM)
    assert second.value("heartbeat") is None
    first.release_lease(ONE)
    assert second.holder() is not None
    second.set_value("heartbeat", 8)
    assert first.value("heartbeat") == 8


def test_a_takeover_waits_for_a_write_that_has_begun(first: Store, second: Store) -> None:
    """The server of these tests waits a second for a lock."""
    assert first.take_lease(ONE, TERM) is None
    run_out(second)
    with first._writing() as connection:
        connection.execute(text("insert into meta values ('heartbeat', 7)"))
        with pytest.raises(StoreBusy):
            second.take_lease(OTHER, TERM)
    assert second.take_lease(OTHER, TERM) is None
    assert second.value("heartbeat") == 7


def test_one_that_stands_still_inside_a_write_holds_up_nobody(first: Store, second: Store) -> None:
    """Frozen, or its host is dead: the server ends its connection, and the write is undone."""
    with first._writing() as connection:
        assert connection.scalar(text("select @@session.idle_transaction_timeout")) == 30
    assert first.take_lease(ONE, TERM) is None
    run_out(second)
    with pytest.raises(StoreError), first._writing() as connection:
        connection.execute(text("set session idle_transaction_timeout = 1"))
        connection.execute(text("insert into meta values ('heartbeat', 7)"))
        assert wait_until(lambda: takes(second), 60.0)
    assert second.value("heartbeat") is None


def takes(store: Store) -> bool:
    try:
        return store.take_lease(OTHER, TERM) is None
    except StoreBusy:
        return False


def test_a_clock_of_the_database_that_was_set_back_keeps_nobody_out(first: Store, second: Store) -> None:
    assert first.take_lease(ONE, TERM) is None
    change(second, "update lease set until = until + 86400")
    assert second.take_lease(OTHER, TERM) is not None
    found = second.holder()
    assert found is not None and found.left_s <= TERM
    first.set_value("heartbeat", 7)


def test_a_daemon_that_was_killed_and_started_again_need_not_wait(first: Store, second: Store) -> None:
    assert first.take_lease(ONE, TERM) is None
    again = Claim("a new token", ONE.host, 33, ONE.place)
    assert second.take_lease(again, TERM) is None
    with pytest.raises(LeaseLost):
        first.upsert_run(RUN)


def test_a_writer_that_is_frozen_before_its_write(url: str, first: Store, second: Store, tmp_path: Path) -> None:
    """A real process, a real SIGSTOP: it wakes when another has taken over."""
    went = tmp_path / "went"
    child = subprocess.Popen([sys.executable, "-c", FROZEN, url, str(went)], stderr=subprocess.PIPE, text=True)
    assert wait_until(went.exists, 60.0)
    os.kill(child.pid, signal.SIGSTOP)
    assert wait_until(lambda: runs_out(second) and takes(second), 60.0)
    second.set_value("heartbeat", -1)
    os.kill(child.pid, signal.SIGCONT)
    _, told = child.communicate(timeout=60)
    assert "LeaseLost" in told and "has taken over" in told
    assert second.value("heartbeat") == -1


def runs_out(store: Store) -> bool:
    """Not while the frozen one holds the row: until the server has ended its connection."""
    try:
        run_out(store)
    except StoreBusy:
        return False
    return True


FROZEN = """
import sys
from nccl_slurm.errors import LeaseLost, StoreError
from nccl_slurm.history import database
from nccl_slurm.history.rows import Claim
from nccl_slurm.history.store import Store
database._ABANDONED = database._ABANDONED.replace("30", "2")
store = Store.open(sys.argv[1])
assert store.take_lease(Claim("frozen", "ctl1", 11, "place 1"), 600.0) is None
number = 0
while True:
    try:
        store.set_value("heartbeat", number := number + 1)
    except LeaseLost:
        raise
    except StoreError:  # frozen within a transaction: the server has ended the connection
        continue
    open(sys.argv[2], "w").close()
"""


def test_stand_bys_are_seen_until_they_leave_or_work(first: Store, second: Store) -> None:
    assert first.take_lease(ONE, TERM) is None
    second.stand_by(OTHER, reaches_slurm=False)
    second.stand_by(OTHER, reaches_slurm=True)
    (seen,) = first.standbys()
    assert (seen.host, seen.pid, seen.reaches_slurm) == ("ctl2", 22, True) and seen.seen_s < 60
    second.stand_by_no_more(OTHER)
    assert first.standbys() == ()
    second.stand_by(OTHER, reaches_slurm=True)
    first.release_lease(ONE)
    assert second.take_lease(OTHER, TERM) is None and first.standbys() == ()


def test_hints_of_a_stand_by_come_once(first: Store, second: Store) -> None:
    assert first.take_lease(ONE, TERM) is None
    second.pass_on_hints({4, 5})
    second.pass_on_hints({5, 6})
    assert first.take_hints() == {4, 5, 6}
    assert first.take_hints() == frozenset()


def test_a_newer_version_leaves_the_tables_of_a_daemon_that_works(url: str, first: Store) -> None:
    newer = (*MIGRATIONS, lambda connection: None)
    assert first.take_lease(ONE, TERM) is None
    with pytest.raises(StoreBusy, match=r"the daemon on ctl1 \(pid 11\) is of an older nccl-slurm; stop it"):
        Store.open(url, migrations=newer)
    first.set_value("heartbeat", 7)
    first.release_lease(ONE)
    Store.open(url, migrations=newer).close()
