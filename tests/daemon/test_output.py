from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.daemon.output import MAX_LEFT, OutputReader, Wanted, of_this_run, parsed_from_json
from nccl_slurm.model import Fact, Rank


def fact(file: str, time: float | None = None) -> dict[str, Any]:
    made = Fact("k", "t", "torch", "cause", "job", file=file, time=time, uncertainty_s=None if time is None else 1.0)
    return made.to_json()


def test_words_of_earlier_runs_are_left_out() -> None:
    answer = {
        "facts": [fact("new.log"), fact("old.log"), fact("new.log", 900.0), fact("new.log", 1005.0)],
        "ranks": [Rank(0, files=["new.log"]).to_json(), Rank(1, files=["old.log"]).to_json()],
        "files": [{"path": "new.log", "mtime": 1100.0}, {"path": "old.log", "mtime": 10.0}],
        "gaps": [],
        "world_size": None,
    }
    read = parsed_from_json(of_this_run(answer, 1000.0))
    assert [(one.file, one.time) for one in read.facts] == [("new.log", None), ("new.log", 1005.0)]
    assert [one.rank for one in read.ranks] == [0]
    assert [gap.source for gap in read.gaps] == ["old.log", "job output"]


def test_what_stands_above_the_end_of_an_earlier_run_is_left_out() -> None:
    """A requeued job appends; its exceptions have no stamp."""
    end = {"kind": "slurm.cancelled", "time": 900.0, "uncertainty_s": 0.0}
    lines = [fact("a.out"), {**fact("a.out"), **end}, fact("a.out"), {**fact("a.out"), **end, "time": 1100.0}]
    facts = [{**one, "line": number} for number, one in enumerate(lines, 1)]
    answer = {"facts": [*facts, fact("b.out")], "ranks": [], "files": [], "gaps": [], "world_size": None}
    read = parsed_from_json(of_this_run(answer, 1000.0))
    assert [(one.file, one.line) for one in read.facts] == [("a.out", 3), ("a.out", 4), ("b.out", None)]


def test_what_can_not_be_read_is_a_gap() -> None:
    assert [gap.source for gap in OutputReader("", 5.0).read([], 0, 0.0).gaps] == ["job output"]
    unknown = OutputReader("", 5.0).read(["/x"], 4_000_000_000, 0.0)
    assert "not known on this host" in unknown.gaps[0].why
    broken = OutputReader("/nonexistent", 5.0, python="/nonexistent/python3").read(["/x"], 0, 0.0)
    assert "could not be read" in broken.gaps[0].why


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_readers_that_can_not_be_ended_are_counted_and_no_more_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs in a file system gets no signal: here none is sent."""
    slow = tmp_path / "python3"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    reader = OutputReader("", 0.1, python=str(slow))
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda pid, number: None)
        for _ in range(2):
            assert "no answer" in reader.read(["/x"], os.getuid(), 0.0).gaps[0].why
    try:
        assert len(reader.left) == 2
        reader.left.extend(reader.left[:1] * (MAX_LEFT - 2))  # the same one, counted often
        assert "not read: 8 earlier readers hang" in reader.read(["/x"], os.getuid(), 0.0).gaps[0].why
        assert len(reader.left) == MAX_LEFT
    finally:
        for pid in set(reader.left):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert "no answer" in reader.read(["/x"], os.getuid(), 0.0).gaps[0].why
    assert reader.left == []  # and this one could be ended


def test_an_answer_of_another_shape_is_a_gap_and_no_error(tmp_path: Path) -> None:
    """The child runs as the user."""
    for answer in ("[]", "[" * 100_000, '{"facts": 3, "ranks": [5], "files": {"a": 1}, "gaps": [{"x": 1}]}'):
        (tmp_path / "answer").write_text(answer)
        fake = tmp_path / "python3"
        fake.write_text(f"#!/bin/sh\nexec cat {tmp_path}/answer\n")
        fake.chmod(0o755)
        read = OutputReader("", 30.0, python=str(fake)).read(["/x"], os.getuid(), 0.0)
        assert (list(read.facts), list(read.ranks)) == ([], [])


def test_one_child_reads_the_outputs_of_many_runs(tmp_path: Path) -> None:
    said = [tmp_path / f"{number}.out" for number in range(3)]
    for number, path in enumerate(said):
        path.write_text(f"[rank{number}]: RuntimeError: CUDA error: no kernel image is available\n")
    wanted = [Wanted([str(said[0])], 0.0), Wanted([], 0.0), Wanted([str(said[1]), str(said[2])], 0.0)]
    first, none, two = OutputReader("", 60.0).read_each(wanted, os.getuid())
    assert first and none and two
    assert [len(one.facts) > 0 for one in (first, none, two)] == [True, False, True]
    assert {fact.file for fact in first.facts} == {str(said[0])}
    assert {fact.file for fact in two.facts} == {str(said[1]), str(said[2])}
    assert [gap.why for gap in none.gaps] == ["Slurm told no path of it"]


def test_those_behind_an_output_that_ends_the_reader_are_told_apart(tmp_path: Path) -> None:
    """The first that was not answered may have had little of the time: it is asked for alone."""
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\necho \'{"facts": [], "ranks": [], "gaps": []}\'\nprintf \'{"facts": \'\nexit 7\n')
    fake.chmod(0o755)
    reader, wanted = OutputReader("", 30.0, python=str(fake)), [Wanted(["/x"], 0.0)] * 3
    answered, *rest = reader.read_each(wanted, os.getuid())
    assert answered and not answered.gaps and rest == [None, None]
    fake.write_text("#!/bin/sh\nexit 7\n")
    first, *rest = reader.read_each(wanted, os.getuid())
    assert first and "exit 7" in first.gaps[0].why and rest == [None, None]
