from __future__ import annotations

from typing import Any

from nccl_slurm.daemon.output import OutputReader, of_this_run, parsed_from_json
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


def test_what_can_not_be_read_is_a_gap() -> None:
    assert [gap.source for gap in OutputReader("", 5.0).read([], 0, 0.0).gaps] == ["job output"]
    unknown = OutputReader("", 5.0).read(["/x"], 4_000_000_000, 0.0)
    assert "not known on this host" in unknown.gaps[0].why
    broken = OutputReader("/nonexistent", 5.0, python="/nonexistent/python3").read(["/x"], 0, 0.0)
    assert "could not be read" in broken.gaps[0].why
