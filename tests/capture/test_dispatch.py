"""The one worker of a node: what is queued is worked on, whatever single runs do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nccl_slurm.capture import dispatch, queue
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
    slots = [dispatch._free_slot(conf, number) for number in range(dispatch.SLOTS)]
    assert None not in slots and dispatch._free_slot(conf, 0) is None
    entry = Entry("finish", "1.100", 100, 0)
    assert dispatch._start(conf, lambda _: 0, [entry]) == []
    os.close(slots[2] or 0)
    (child,) = dispatch._start(conf, lambda _: 0, [entry, entry])
    os.waitpid(child.pid, 0)


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
