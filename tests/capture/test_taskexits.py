"""Reading what the SPANK plugin wrote: root's own file, but a disk may have been full, or the node have died."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.capture import taskexits
from nccl_slurm.capture.spool import Run
from nccl_slurm.model import Gap

LINE = (
    "step={step} task={task} local=0 pid={pid} status={status} exit=0 signal=0 start={start} end=1700000001500000000\n"
)
BAD = ("", "\n", "step=0 task=1\n", "\0\xff\n")


def line(step: str = "0", task: int = 3, pid: int = 71, status: int = 0, start: int = 1700000000000000000) -> str:
    return LINE.format(step=step, task=task, pid=pid, status=status, start=start)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "42.1700000000" / "root").mkdir(parents=True)
    return Run(str(tmp_path / "42.1700000000"), 42, 1700000000)


def read(run: Run, text: str) -> tuple[list[dict[str, object]], list[str]]:
    Path(run.root(taskexits.NAME)).write_text(text)
    gaps: list[Gap] = []
    found = taskexits.task_exits(run, gaps)
    assert {gap.source for gap in gaps} <= {"task exits"}
    return found, [gap.why for gap in gaps]


def test_a_line_in_the_records_shape(run: Run) -> None:
    found, gaps = read(run, line(status=9))
    assert (found, gaps) == (
        [{"rank": 3, "exit": -9, "pid": 71, "time": 1700000001.5, "start": 1700000000.0, "step": "0"}],
        [],
    )


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1792, 7), (35072, 137), (9, -9), (139, -11), (15, -15)])
def test_status_of_wait(run: Run, status: int, code: int) -> None:
    """139: SIGSEGV with a core dump."""
    assert read(run, line(status=status))[0][0]["exit"] == code


def test_what_was_not_seen_is_unknown(run: Run) -> None:
    found, _ = read(run, line(pid=-1, start=0, step="batch"))
    assert (found[0]["pid"], found[0]["start"], found[0]["step"]) == (None, None, "batch")


@pytest.mark.parametrize("bad", [*BAD, "step=a" + line()[6:], line()[:-1], line()[:-9]])
def test_cut_and_strange_lines_are_counted(run: Run, bad: str) -> None:
    found, gaps = read(run, line() + bad)
    assert len(found) == 1 and gaps == (["1 lines are cut or malformed"] if bad else [])


def test_without_the_plugin_one_gap(run: Run) -> None:
    gaps: list[Gap] = []
    assert taskexits.task_exits(run, gaps) == []
    assert gaps == [Gap("task exits", "no SPANK plugin reports how each task ended")]


def test_a_file_at_its_limit_says_that_more_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskexits, "_FILE_BYTES", 1000)
    found, gaps = read(run, line() * 12)
    assert 6 <= len(found) < 12 and gaps[-1].startswith("more tasks ended here than are kept")
    monkeypatch.setattr(taskexits, "_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(taskexits, "_MAX", 5)
    assert len(read(run, line() * 8)[0]) == 5
