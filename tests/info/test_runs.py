from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.cli.logs import report_of_logs
from nccl_slurm.info.runs import runs
from nccl_slurm.model import Fact

LOST = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1943. \
This is typically caused by a remote worker crashing.
"""
RAISED = """[rank2]: Traceback (most recent call last):
[rank2]: ValueError: loss is nan
"""


def cancelled(step: str) -> Fact:
    return Fact("slurm.cancelled", "", "slurm", "consequence", "job", data={"step": step})


@pytest.mark.parametrize(
    ("files", "steps", "expected"),
    [
        (["slurm-42.out", "slurm-42.err", "rank_0.log"], ["42.0", "42"], ()),
        (["slurm-42.out", "old/slurm-43.out"], [], ("42", "43")),
        (["slurm-42_1.out", "slurm-42_2.out"], [], ("42_1", "42_2")),
        (["slurm-1.out"], ["4711.0"], ()),  # renamed
        (["train.out", "eval.out"], ["42.0", "43.0"], ("42", "43")),
        (["train.out"], ["43+0.0", "43+1.0", "43"], ()),
        (["n1/42.1795000000/user/a", "n2/42.1795000002/user/a"], [], ()),
        (["42.1795000000/user/a", "42.1795000900/user/a"], [], ("42.1795000000", "42.1795000900")),
        (["42.1795000000/user/a", "43.1795000000/user/a"], [], ("42", "43")),
        (["task.batch.0", "task.0.0", "task.0.1"], [], ()),
        (["task.0.0", "n2/task.1.0"], [], ("step 0", "step 1")),
        ([], ["x", ""], ()),
    ],
    ids=str,
)
def test_runs(files: list[str], steps: list[str], expected: tuple[str, ...]) -> None:
    assert runs(files, map(cancelled, steps)) == expected


@pytest.mark.parametrize("other", ["slurm-43.out", None])
def test_logs_of_several_jobs_prove_nobody(tmp_path: Path, other: str | None) -> None:
    lines = "world_size=4\n" + RAISED + "".join(LOST.format(rank=rank) for rank in (0, 1, 3))
    (tmp_path / "slurm-42.out").write_text(lines)
    if other is not None:
        (tmp_path / other).write_text("epoch 1\n")
    report = report_of_logs(str(tmp_path))
    verdict = report["verdict"]
    named = [one["rank"] for one in verdict["culprits"]], [one["rank"] for one in verdict["suspects"]]
    assert verdict["class"] == "rank-exception"
    assert (named, verdict["confidence"]) == ((([], [2]), "likely") if other else (([2], []), "proven"))
    told = [gap["why"] for gap in report["gaps"] if gap["source"] == "runs"]
    assert [why.partition(";")[0] for why in told] == (["logs of several: 42, 43"] if other else [])


ENDED = "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO PREEMPTION ***\n"
AGENT = "torch/distributed/elastic/multiprocessing/api.py:900] Sending process 812 closing signal SIGTERM\n"
STARTED = "n1:812:812 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 cudaDev 0 busId 1a000 - Init START\n"
STEPS = "".join(f"step {step} loss 2.0\n" for step in range(20))


@pytest.mark.parametrize(
    ("below", "several"),
    [
        (f"W1130 12:00:04.000000 500 {AGENT}", True),  # a day later
        (f"W1129 10:00:04.000000 500 {AGENT}", False),  # it is being ended
        (STARTED, True),
        (STEPS, True),
        ("[rank0]: KeyboardInterrupt\n", False),
    ],
)
def test_a_requeued_job_that_appends_proves_nobody(tmp_path: Path, below: str, several: bool) -> None:
    (tmp_path / "slurm-42.out").write_text("world_size=4\n" + ENDED + below + RAISED)
    report = report_of_logs(str(tmp_path))
    verdict = report["verdict"]
    named = [one["rank"] for one in verdict["culprits"]], [one["rank"] for one in verdict["suspects"]]
    assert verdict["class"] == ("rank-exception" if several else "preempt-cancel")
    assert named == ([], [2] if several else [])
    told = [gap["why"] for gap in report["gaps"] if gap["source"] == "runs"]
    names = "slurm-42.out to line 2, slurm-42.out below it"
    assert [why.partition(";")[0] for why in told] == ([f"logs of several: {names}"] if several else [])
