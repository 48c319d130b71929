"""The doctor's checks of a job, beside a real one: its ranks by trees that stand in for /proc, its output as it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm import schema
from tests.cluster.harness import Cluster
from tests.doctor.jobs import limits

PLACES = ("n1", "n2")
SCRIPT = "#!/bin/sh\necho 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB'\nsrun sleep 300\n"


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Cluster:
    cluster.heal()
    return cluster


@pytest.fixture(scope="module")
def job(lab: Cluster) -> str:
    made = lab.sbatch(SCRIPT, "-N2", "-w", "n[1-2]")
    lab.wait_job(made, {"RUNNING"})
    return made


@pytest.fixture(scope="module")
def trees(job: str) -> Iterator[Path]:
    """Two ranks a node; the one of n2 has another setting, a slip in a name, and little memory to lock."""
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-trees-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for number in range(4):
            node = PLACES[number // 2]
            odd = {"NCCL_IB_DISABLE": "1", "NCCL_SOKET_IFNAME": "eth0"} if number == 3 else {}
            process(folder / node / "proc" / str(100 + number), job, number, odd)
            (folder / node / "proc" / "stat").write_text("cpu 1\nbtime 1790000000\n")
        yield folder


def process(folder: Path, job: str, number: int, more: Mapping[str, str]) -> None:
    meeting = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    environment = {"RANK": str(number), **meeting, **more}
    files = {
        "stat": f"{folder.name} (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n",
        "cgroup": f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n",
        "environ": "".join(f"{name}={value}\0" for name, value in environment.items()),
        "limits": limits(hard="1024" if more else "131072"),
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def doctor(lab: Cluster, trees: Path, job: str, user: str | None = None) -> dict[str, Any]:
    words = ("doctor", "--job", job, "--only", "job", "--no-aws", "--sysroot", f"{trees}/%n", "--json")
    done = lab.nccl_slurm(*words, user=user, check=False)
    assert done.returncode == 1 and done.stdout, done.stderr
    told = schema.loads(done.stdout.encode(), "doctor/1")
    assert done.returncode == told["exit"] == 1, done.stderr
    return told


def found(told: Mapping[str, Any], check: str) -> list[tuple[str, str | None, list[str]]]:
    return [(one["status"], one["priority"], one["nodes"]) for one in told["findings"] if one["check"] == check]


@pytest.mark.parametrize("user", ["alice", None])
def test_ranks_of_a_job_that_runs(lab: Cluster, trees: Path, job: str, user: str | None) -> None:
    told = doctor(lab, trees, job, user)
    assert told["nodes"]["ways"] == {"job-step": ["n1", "n2"]}
    assert found(told, "job.environment") == [("WARN", "P1", ["n2"])] * 2
    assert found(told, "job.nccl-names") == [("WARN", "P1", ["n2"])]
    assert found(told, "job.limits") == [("FAIL", "P1", ["n2"])]


def test_its_output_is_read_and_accuses_no_node_while_it_runs(lab: Cluster, trees: Path, job: str) -> None:
    told = doctor(lab, trees, job)
    assert found(told, "job.output") == [("WARN", "P1", [])]
    (one,) = [one for one in told["findings"] if one["check"] == "job.output"]
    assert "CUDA out of memory" in one["proofs"][0]["line"]
    assert found(told, "job.transport") == [("UNKNOWN", None, [])]


def test_commands_lead_to_the_ranks_own_process(lab: Cluster, trees: Path, job: str) -> None:
    told = doctor(lab, trees, job)
    (one,) = [one for one in told["findings"] if one["check"] == "job.nccl-names"]
    assert any(f"--jobid={job}" in line and "/proc/103/environ" in line for line in one["commands"])
    lab.slurm("scancel", job, user="alice")
    lab.wait_job(job)
