"""Real torchrun jobs with gloo on the real cluster: who is named, in report and comment, and who is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import jobs
from tests.cluster.harness import Cluster
from tests.cluster.job_python import torch_of_jobs
from tests.cluster.outcome import outcome, report

pytestmark = pytest.mark.torch


@pytest.fixture
def lab(idle_cluster: Cluster) -> Iterator[Cluster]:
    if torch_of_jobs(idle_cluster.job_python()) is None:
        pytest.skip("torch is not there; ./install.sh --test --with-torch brings it")
    if not idle_cluster.alive("nccl-slurm"):
        idle_cluster.start_daemon()
    yield idle_cluster


def submit(lab: Cluster, *arguments: str, options: tuple[str, ...] = (), torchrun: str = "", nodes: int = 2) -> str:
    script = jobs.torchrun(lab.job_python(), lab.programs, *arguments, options=torchrun)
    return lab.sbatch(script, f"-N{nodes}", "--ntasks-per-node=1", *options)


def test_all_good(lab: Cluster) -> None:
    job = submit(lab, "--mode=good")
    assert lab.wait_job(job, timeout=120) == "COMPLETED"
    found = outcome(lab, job)
    assert (found.failure_class, found.culprits, found.comment) == ("benign", frozenset(), "")


@pytest.mark.parametrize(
    ("mode", "rank", "failure_class"),
    [
        ("raise", 1, "rank-exception"),
        ("sigkill", 2, "process-signal"),
        ("sleep", 3, "collective-missing-rank"),
        ("mismatch", 2, "collective-mismatch"),
    ],
)
def test_the_rank_that_stopped_is_named(lab: Cluster, mode: str, rank: int, failure_class: str) -> None:
    job = submit(lab, f"--mode={mode}", f"--rank={rank}", "--timeout=8", "--dump-after=4")
    assert lab.wait_job(job, timeout=180) == "FAILED"
    found = outcome(lab, job)
    node = report(lab, job)["job"]["nodes"][rank // 2]
    assert found.failure_class == failure_class
    assert {named for named, _ in found.culprits} == {rank}
    assert {host for _, host in found.culprits} <= {node, None}
    assert f"rank {rank} " in found.comment and f"report {job}]" in found.comment
    assert not found.report["recommendations"] or {r["action"] for r in found.report["recommendations"]} <= {
        "fix-code",
        "fix-config",
        "investigate",
    }
