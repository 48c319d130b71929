"""The daemon dies at each of its writes, before it and after it, and a new one goes on: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from nccl_slurm.daemon.diagnose import Diagnosis, Parts, diagnose
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import CommentField
from nccl_slurm.scheduler.fake import FakeSlurm
from tests.daemon.test_loop import FAILED, Lab, end_badly


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


class Died(BaseException):
    """No `Exception`: nothing in the daemon catches it, as nothing catches SIGKILL."""


class Mortal:
    """``at``: the number of the write at which the daemon dies; ``after``: what was written stands."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self.after = at, after

    @contextmanager
    def write(self) -> Iterator[None]:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Died
        yield
        if self.left == 0:
            raise Died


def lab_of(folder: Path, mortal: Mortal) -> Lab:
    class MortalStore(Store):
        @contextmanager
        def _writing(self) -> Iterator[Connection]:
            with mortal.write(), super()._writing() as connection:
                yield connection

    class MortalSlurm(FakeSlurm):
        def write_accounted_comment(
            self, job_ids: object, text: str, field: CommentField = "comment"
        ) -> frozenset[int]:
            with mortal.write():
                return super().write_accounted_comment(job_ids, text, field)  # type: ignore[arg-type]

    lab = Lab(folder)
    lab.store.close()
    lab.store = MortalStore.open(f"sqlite:///{folder}/store.db")
    lab.slurm.__class__ = MortalSlurm
    lab.restart()
    return lab


def goes_on(lab: Lab, seconds: float, *, step: float) -> bool:
    """Whether it lived; a new daemon takes over from one that died."""
    try:
        lab.run(seconds, step=step)
    except Died:
        lab.restart()
        return False
    return True


def plays(lab: Lab) -> bool:
    """A job fails on two nodes; the record of one of them comes after the verdict. Whether the daemon lived."""
    job = lab.slurm.submit("n[1-2]", comment="mine")
    began = lab.clock.now()
    lived = goes_on(lab, 12, step=4)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.hint(job)
    lab.record(job, "n1", at=began)
    lived &= goes_on(lab, 75, step=5)
    lab.record(job, "n2", at=began)
    lived &= goes_on(lab, 40, step=5)
    goes_on(lab, 65, step=5)
    lab.slurm.purge(job)
    lab.run(450, step=50)
    return lived


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
def test_killed_at_each_write(tmp_path: Path, after: bool) -> None:
    at, lived = 0, False
    while not lived:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        lab = lab_of(folder, Mortal(at, after=after))
        lived = plays(lab)
        judge(lab, at)
        lab.store.close()
    assert at > 10


def judge(lab: Lab, at: int) -> None:
    (run,) = lab.store.runs_of_raw("c", 1)
    found = lab.verdict(1)
    assert found and (run.status, found["status"]) == ("final", "final"), at
    assert [node["record"] != "missing" for node in found["nodes"]] == [True, True], at
    assert lab.comment(1).startswith("mine [nccl-slurm: ") and lab.comment(1).count("[nccl-slurm: ") == 1, at
    assert lab.store.comment_counts() == {"verified": 1}, at
    assert not list((lab.shared / "new").iterdir()), at
    assert sorted(path.name for path in (lab.shared / "reports").iterdir()) == ["1.json", "1.run1.json"], at


def test_a_run_that_can_not_be_judged_holds_up_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(parts: Parts, status: str, *, run_in_comment: int | None = None) -> Diagnosis:
        if parts.job.id == "1":
            raise ZeroDivisionError("one of ours")
        return diagnose(parts, status, run_in_comment=run_in_comment)

    monkeypatch.setattr("nccl_slurm.daemon.conclude.diagnose", fails)
    jobs = [end_badly(lab, "n1") for _ in range(2)]
    for job in jobs:
        lab.record(job, "n1")
    lab.run(5)
    assert lab.verdict(jobs[0]) is None and "report" in lab.comment(jobs[1])
    assert [note.text for note in lab.store.notes("verdicts")] == ["job 1 run 1: ZeroDivisionError: one of ours"]
    monkeypatch.undo()
    lab.run(700, step=20)
    assert "report" in lab.comment(jobs[0])
