"""Two daemons, one store in MariaDB: one works, the other takes over; what was frozen does nothing when it wakes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from nccl_slurm.cli.daemon import _in_turn
from nccl_slurm.clock import MovableClock
from nccl_slurm.daemon.conclude import Conclusions
from nccl_slurm.daemon.intake import Hints
from nccl_slurm.daemon.lease import Lease, claim_of
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.notify import Notifier
from nccl_slurm.daemon.standby import StandBy
from nccl_slurm.errors import LeaseLost, StoreError
from nccl_slurm.history.rows import ReportRow, RunRow, StandBySeen
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import CommentState
from nccl_slurm.scheduler.fake import FakeSlurm
from tests.daemon.test_loop import FAILED, Lab
from tests.history.conftest import server as server
from tests.history.mariadb import Server

TERM = 20.0
_NUMBERS = iter(range(1000))

pytestmark = pytest.mark.mariadb


class Host:
    """A controller with a daemon of its own; ``elapsed`` is its clock that nobody sets."""

    def __init__(self, lab: Lab, url: str, name: str) -> None:
        self.lab, self.elapsed = lab, 0.0
        self.store = Store.open(url)
        self.lease = Lease(self.store, claim_of(f"/{name}"), TERM, lambda: self.elapsed)
        self.events = lab.events.parent / name
        (self.events / "new").mkdir(parents=True)

    def works(self, slurm: FakeSlurm | None = None) -> Daemon:
        assert self.lease.take() is None
        lab = self.lab
        made = slurm or lab.slurm
        return Daemon(
            lab.config, made, self.store, lab.clock, lab.output, lab.slurm.settings(), Notifier(""), lease=self.lease
        )

    def standby(self, slurm: FakeSlurm | None = None) -> StandBy:
        lab = self.lab
        hints = Hints(str(self.events))
        return StandBy(self.lease, self.store, slurm or lab.slurm, hints, MovableClock(), Notifier(""), 1.0)

    def has_run_out(self, *, paused: bool = False) -> None:
        """No renewal came for a term; in a virtual machine that is paused its own clocks stand still too."""
        self.elapsed += 0.0 if paused else TERM
        with self.store._transaction(write=True) as connection:
            connection.execute(text("update lease set until = until - 1000"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def hosts(server: Server, lab: Lab) -> Iterator[tuple[Host, Host]]:
    name = f"two{next(_NUMBERS)}"
    server.run(f"create database {name}")
    one, two = Host(lab, server.url(name), "one"), Host(lab, server.url(name), "two")
    yield one, two
    one.store.close()
    two.store.close()


def run(lab: Lab, daemon: Daemon, seconds: int) -> None:
    for _ in range(seconds):
        daemon.tick()
        lab.clock.sleep(1.0)


def end_badly(lab: Lab) -> int:
    job = lab.slurm.submit("n1", comment="mine")
    lab.clock.sleep(3.0)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.hint(job)
    lab.record(job, "n1")
    return job


def written(lab: Lab) -> int:
    return sum(call[0] == "write_accounted_comment" for call in lab.slurm.calls)


def test_the_other_goes_on_where_the_first_one_died(lab: Lab, hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    first = one.works()
    job = end_badly(lab)
    run(lab, first, 3)
    assert lab.comment(job).count("[nccl-slurm: ") == 1 and written(lab) == 1
    later = end_badly(lab)
    one.has_run_out()
    run(lab, two.works(), 90)
    assert [lab.comment(one).count("[nccl-slurm: ") for one in (job, later)] == [1, 1]
    assert written(lab) == 2
    assert two.store.comment_counts() in ({"written": 2}, {"verified": 2})
    with pytest.raises(LeaseLost):
        first.tick()
    assert written(lab) == 2


def test_frozen_between_looking_and_writing_a_comment(lab: Lab, hosts: tuple[Host, Host]) -> None:
    one, two = hosts

    class Freezing(FakeSlurm):
        """Its answer comes when another daemon has taken over."""

        def comments(self, raw_ids: object) -> dict[int, CommentState]:
            found = super().comments(raw_ids)  # type: ignore[arg-type]
            one.has_run_out(paused=True)
            assert two.lease.take() is None
            return found

    daemon = one.works()
    job = end_badly(lab)
    lab.slurm.__class__ = Freezing
    with pytest.raises(LeaseLost, match="has taken over"):
        run(lab, daemon, 3)
    assert written(lab) == 0 and lab.comment(job) == "mine"
    assert two.store.comment_counts() == {"queued": 1}
    lab.slurm.__class__ = FakeSlurm
    run(lab, two.works(), 3)
    assert written(lab) == 1 and lab.comment(job).count("[nccl-slurm: ") == 1


def test_frozen_before_a_report_is_published(
    lab: Lab, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    daemon = one.works()
    end_badly(lab)
    publish = Conclusions._publish

    def frozen(self: Conclusions, run: RunRow, kept: ReportRow, uid: int) -> None:
        one.has_run_out(paused=True)
        assert two.lease.take() is None
        publish(self, run, kept, uid)

    with monkeypatch.context() as patched, pytest.raises(LeaseLost):
        patched.setattr(Conclusions, "_publish", frozen)
        run(lab, daemon, 3)
    assert not list((lab.shared / "reports").iterdir())
    run(lab, two.works(), 3)
    assert {path.name for path in (lab.shared / "reports").iterdir()} == {"1.json", "1.run1.json"}


def test_an_older_copy_that_was_published_late_is_replaced(lab: Lab, hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    daemon = one.works()
    end_badly(lab)
    run(lab, daemon, 3)
    copy = lab.shared / "reports" / "1.run1.json"
    right = copy.read_bytes()
    copy.write_text("{}")
    for _ in range(130):
        daemon.tick()
        lab.clock.sleep(30.0)
        one.elapsed += 1.0
    assert copy.read_bytes() == right


def test_a_store_that_is_away_costs_no_lease(
    lab: Lab, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = hosts
    daemon = one.works()
    job = end_badly(lab)

    def away(*_: object, **__: object) -> None:
        raise StoreError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(one.store, "_transaction", away)
        one.elapsed += 10 * TERM
        run(lab, daemon, 3)
        assert written(lab) == 0
    run(lab, daemon, 70)
    assert written(lab) == 1 and lab.comment(job).count("[nccl-slurm: ") == 1


def test_it_is_asked_for_when_the_last_renewal_is_old_alone(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    assert one.lease.take() is None
    one.has_run_out()
    one.elapsed -= TERM - 1.0
    assert two.lease.take() is None
    one.lease.hold()  # nothing was asked: it could not have run out yet
    one.elapsed += TERM
    with pytest.raises(LeaseLost):
        one.lease.hold()
    one.elapsed = 0.0
    with pytest.raises(LeaseLost):
        one.lease.hold()


def test_it_is_given_to_a_stand_by_that_slurm_answers(lab: Lab, hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    daemon = one.works()
    lab.slurm.away = {"slurmctld"}
    run(lab, daemon, 60)
    two.store.stand_by(two.lease.claim, reaches_slurm=False)
    run(lab, daemon, 20)
    two.store.stand_by(two.lease.claim, reaches_slurm=True)
    with pytest.raises(LeaseLost, match="slurmctld does not answer here"):
        run(lab, daemon, 10)


def test_kept_means_renewed_and_given_back(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    assert one.lease.take() is None
    with one.lease.kept():
        assert two.lease.take() is not None
    assert two.lease.take() is None
    with pytest.raises(LeaseLost):
        one.lease.hold()


def test_a_stand_by_waits_passes_on_and_takes_over(lab: Lab, hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    daemon = one.works()
    job = end_badly(lab)
    shutil.move(lab.events / "new" / f"{job}.0", two.events / "new" / f"{job}.0")
    left = iter(range(8))
    assert not two.standby().wait(lambda: next(left, None) is None)
    assert not list((two.events / "new").iterdir()) and one.store.standbys() == ()
    run(lab, daemon, 3)
    assert written(lab) == 1
    one.lease.release()
    assert two.standby().wait(lambda: False)
    assert one.lease.take() is not None


def test_one_that_lost_it_or_its_store_stands_by_and_works_again(hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    ends = [LeaseLost("another has it"), StoreError("no answer"), None]
    worked: list[str] = []

    def work() -> None:
        holder = one.store.holder()
        worked.append(holder.token if holder else "")
        if error := ends[len(worked) - 1]:
            raise error

    _in_turn(one.standby(), one.lease, work, lambda: len(worked) == len(ends))
    assert worked == [one.lease.claim.token] * 3
    assert one.store.holder() is None


def test_a_stand_by_that_slurm_does_not_answer_does_not_take_it(lab: Lab, hosts: tuple[Host, Host]) -> None:
    _, two = hosts
    lab.slurm.away = {"slurmctld"}
    seen: list[StandBySeen] = []

    def stopping() -> bool:
        seen[:] = two.store.standbys()
        return bool(seen)

    assert not two.standby().wait(stopping)
    assert [one.reaches_slurm for one in seen] == [False] and two.store.holder() is None
