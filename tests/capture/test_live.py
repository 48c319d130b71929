"""``nccl-slurm-node live`` as a step runs it: a process of its own, over a run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.live.look import Answer
from nccl_slurm.live.reader import Collected
from tests.capture.test_ras import rightly, server
from tests.parse.test_ras import TEXT

MAIN = Path(__file__).resolve().parents[2] / "nccl_slurm" / "capture" / "main.py"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A run's folder of this test's own user."""
    made = tmp_path / "5" / "user"
    made.mkdir(parents=True)
    return made


def live(spool: Path, *options: str) -> tuple[Answer, list[str]]:
    command = [sys.executable, "-I", str(MAIN), "live", "--job=5", "--node=n1", *options]
    env = {"NCCL_SLURM_SPOOL": str(spool)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    collected = Collected(["n1"])
    for line in done.stdout.splitlines():
        collected.feed(line)
    return collected.answers("nothing")["n1"], done.stdout.splitlines()


def test_what_ranks_left_until_now(user: Path) -> None:
    (user / "rank_3.log").write_text("[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: x\n")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in user.iterdir())
    answer, lines = live(user.parents[1])
    assert answer.told is not None and [rank["rank"] for rank in answer.told["ranks"]] == [3]
    assert {fact["trust"] for fact in answer.told["facts"]} == {"job"}
    assert [one.name for one in answer.files] == ["rank_3.log"] and 0 <= answer.files[0].age_s < 3600
    assert max(map(len, lines)) < 1024  # what slurmstepd hands on whole
    assert sorted((path.name, path.stat().st_mtime_ns) for path in user.iterdir()) == before


def test_a_long_answer_comes_in_parts(user: Path) -> None:
    for rank in range(64):
        digits = os.urandom(200).hex()
        (user / f"rank_{rank}.log").write_text(f"[rank{rank}]: ValueError: {digits}\n")
    answer, lines = live(user.parents[1])
    assert len(lines) > 1 and max(map(len, lines)) < 1024
    assert answer.told is not None and len(answer.told["ranks"]) == 64


def test_a_job_that_wants_no_capture_is_not_read(user: Path) -> None:
    (user / "capture-off").touch()
    (user / "rank_3.log").write_text("[rank3]: ValueError: x\n")
    answer, _ = live(user.parents[1])
    assert answer.told is not None and answer.told["facts"] == []
    assert [gap["why"] for gap in answer.told["gaps"]] == [CAPTURE_OFF]


def test_a_node_without_the_run_says_so(tmp_path: Path) -> None:
    answer, _ = live(tmp_path)
    assert answer.told is not None and "no user folder" in answer.told["gaps"][0]["why"]


def test_ras_is_asked_on_the_node_that_is_named(user: Path) -> None:
    with server(lambda talk: rightly(talk, TEXT.encode())) as where:
        answer, _ = live(user.parents[1], f"--ras={where}", "--ras-on=n1")
        other, _ = live(user.parents[1], f"--ras={where}", "--ras-on=n2")
    assert answer.told is not None and other.told is not None
    leads = {fact["data"].get("lead") for fact in answer.told["facts"] if fact["kind"] == "nccl.ras-rank"}
    assert -1 in leads
    assert other.told["facts"] == []


def test_a_ras_that_is_not_there_is_a_gap(user: Path) -> None:
    answer, _ = live(user.parents[1], "--ras=127.0.0.1:1", "--ras-on=n1")
    assert answer.told is not None
    assert any(gap["source"] == "NCCL RAS" and "nothing listens" in gap["why"] for gap in answer.told["gaps"])
