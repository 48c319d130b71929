"""The one worker of a node: what is queued is worked on, whatever single runs do."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.capture import dispatch, queue, slots
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.queue import Entry


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conf:
    (tmp_path / "queue").mkdir()
    monkeypatch.setattr(dispatch, "_LINGER_S", 0.2)
    monkeypatch.setattr(dispatch, "_GRACE_S", 0.2)
    return Conf(spool=str(tmp_path), worker_limit_s=1.0)


def _queue(conf: Conf, *names: str) -> None:
    for name in names:
        Path(queue.folder(conf.spool), name).touch()


def _ran(conf: Conf) -> set[str]:
    return {path.name for path in Path(conf.spool).glob("ran.*")}


def test_each_entry_is_worked_on_once_and_leaves_the_queue(conf: Conf) -> None:
    _queue(conf, "finish.1.100", "finish.2.100", "before.3.100", "lock.worker", "finish.x", "before.1.100")

    def work(entry: Entry) -> int:
        with open(f"{conf.spool}/ran.{entry.verb}.{entry.run}", "x"):
            return 0

    dispatch.attend(conf, work)
    assert _ran(conf) == {"ran.finish.1.100", "ran.finish.2.100", "ran.before.3.100"}
    assert queue.entries(conf.spool) == []


def test_one_that_hangs_holds_up_no_other_and_is_ended(conf: Conf) -> None:
    _queue(conf, "finish.1.100", *(f"finish.{number}.101" for number in range(2, 12)))

    def work(entry: Entry) -> int:
        if entry.run == "1.100":
            time.sleep(60)
        Path(conf.spool, f"ran.{entry.run}").touch()
        return 0

    dispatch.attend(conf, work)
    assert _ran(conf) == {f"ran.{number}.101" for number in range(2, 12)}
    assert queue.entries(conf.spool) == []


def test_children_that_can_not_be_killed_keep_their_slots_for_ever(conf: Conf) -> None:
    """Held here by this test: a worker to come starts so many less, and none where none is left."""
    held = [slots.take(conf.spool, "7001") for _ in range(slots.OPEN)]
    assert None not in held and slots.take(conf.spool, "7001") is None
    entry = Entry("finish", "1.100", 100, 0)
    reserved = [slots.take(conf.spool, user) for user in map(str, range(slots.RESERVED))]
    assert None not in reserved and slots.take(conf.spool, "7002") is None
    assert dispatch._start(conf, lambda _: 0, [entry]) == []
    os.close(held[2] or 0)
    (child,) = dispatch._start(conf, lambda _: 0, [entry, entry])
    os.waitpid(child.pid, 0)
    for slot in (*held[:2], *held[3:], *reserved):
        os.close(slot or 0)
    assert slots.held(conf.spool) == []


def _run_of(conf: Conf, run: str, uid: int) -> None:
    root = Path(conf.spool, run, "root")
    root.mkdir(parents=True)
    (root / "prolog.env").write_text(f"time=100\nSLURM_JOB_UID={uid}\n")
    _queue(conf, f"finish.{run}")


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)


def test_a_user_whose_runs_are_slow_holds_up_no_other_user(tmp_path: Path, conf: Conf) -> None:
    """alice's runs end after bob's, and she has more of them than there are slots; bob's come last."""
    conf = replace(conf, worker_limit_s=300.0)
    runs = [f"{number}.100" for number in range(1, 11)]
    for run in runs:
        _run_of(conf, run, 7001)
    _run_of(conf, "11.101", 7002)
    _run_of(conf, "12.102", 7002)

    def work(entry: Entry) -> int:
        if entry.run in runs:
            _wait_for(tmp_path / "ran.12.102")
        seen = "alone" if entry.run in runs and not (tmp_path / "ran.12.102").exists() else "ran"
        (tmp_path / f"{seen}.{entry.run}").touch()
        return 0

    dispatch.attend(conf, work)
    assert _ran(conf) == {f"ran.{run}" for run in (*runs, "11.101", "12.102")}
    assert queue.entries(conf.spool) == []


def test_a_run_that_is_slow_does_not_keep_the_next_worker_waiting(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker's life is over and its child at work: it goes on by itself, and the last worker stays for it."""
    monkeypatch.setattr(dispatch, "_LIFE_S", 0.5)
    conf = replace(conf, worker_limit_s=300.0)
    _run_of(conf, "1.100", 7001)
    later = Path(conf.spool, "ran.2.200")

    def work(entry: Entry) -> int:
        if entry.run == "1.100":
            time.sleep(1)
            _run_of(conf, "2.200", 7001)
            _wait_for(later)
        Path(conf.spool, f"ran.{entry.run}").touch()
        return 0

    dispatch.attend(conf, work)
    assert [entry.run for entry in queue.entries(conf.spool)] == ["2.200"] and not later.exists()
    assert [one.user for one in slots.held(conf.spool)] == ["7001"]
    dispatch.attend(conf, work)
    assert _ran(conf) == {"ran.1.100", "ran.2.200"} and slots.held(conf.spool) == []


def test_a_hook_that_asks_again_is_heard(conf: Conf) -> None:
    _queue(conf, "finish.1.100")
    (entry,) = queue.entries(conf.spool)
    os.utime(Path(queue.folder(conf.spool), "finish.1.100"))
    queue.done(conf.spool, entry)
    (again,) = queue.entries(conf.spool)
    queue.done(conf.spool, again)
    assert queue.entries(conf.spool) == []


@pytest.mark.parametrize(("age", "due"), [(0.5, False), (2.5, True), (-100.0, True)])
def test_a_first_look_waits_two_seconds_and_no_clock_makes_it_wait_longer(age: float, due: bool) -> None:
    assert Entry("before", "1.1000", 1000, 0).due(1000 + age) is due
    assert Entry("finish", "1.1000", 1000, 0).due(1000 + age)
