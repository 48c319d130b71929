"""Job ids that Slurm gives again (MaxJobId): each job keeps its own report and its own comment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.cluster
FIRST, LAST = 1001, 1003


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """An id is free again when slurmctld has forgotten its job, here after two seconds."""
    extra = [f"FirstJobId={FIRST}", f"MaxJobId={LAST}", "MinJobAge=2"]
    with scratch_slot() as folder, Cluster(folder, extra=extra) as running:
        running.write_daemon_config(running.daemon_config.read_text() + '\n[scope]\ndefault = "all"\n')
        running.start_daemon()
        yield running


def is_forgotten(lab: Cluster, job: str) -> bool:
    return lab.slurm("scontrol", "show", "job", job, check=False).returncode != 0


def fails(lab: Cluster, number: int) -> str:
    """A job whose output and comment have its number; once its report is final and slurmctld has forgotten it."""
    script = f"#!/bin/sh\necho '[rank0]: ValueError: number {number}' >&2\nexit 1\n"
    job = lab.sbatch(script, "-N1", f"--comment=number {number}")
    found = outcome(lab, job, ready=lambda told: f"number {number}" in str(told["facts"]))
    assert found.comment.startswith(f"number {number} [nccl-slurm: "), found
    assert wait_until(lambda: is_forgotten(lab, job), 180, every=1)
    return job


def test_an_id_that_comes_again(lab: Cluster) -> None:
    jobs = [fails(lab, number) for number in range(5)]
    again = next(job for job in jobs if jobs.count(job) > 1)
    numbers = [number for number, job in enumerate(jobs) if job == again]
    for run, number in enumerate(numbers, 1):
        told = str(report(lab, again, "--run", str(run))["facts"])
        assert f"number {number}" in told and told.count("ValueError: number") == 1
    rows = lab.sacct(again, "comment", duplicates=True)
    assert [row["comment"].split(" [")[0] for row in rows] == [f"number {number}" for number in numbers]
    assert all("[nccl-slurm: " in row["comment"] for row in rows)
