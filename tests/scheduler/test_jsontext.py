"""JSON that 22.05.8, 24.11.5 and 26.05.5 printed of the same jobs (`samples`: the keys that are read)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccl_slurm.errors import SlurmRefused
from nccl_slurm.scheduler.client import Accounted, LiveJob
from nccl_slurm.scheduler.jsontext import read_accounting, read_live, read_nodes

SAMPLES = Path(__file__).parent / "samples"
RELEASES = ("22.05", "24.11", "26.05")


def sample(release: str, what: str) -> bytes:
    return json.dumps(json.loads((SAMPLES / f"slurm-{release}.json").read_text())[what]).encode()


def live(release: str) -> dict[str, LiveJob]:
    return {job.id: job for job in read_live(sample(release, "jobs"), gpus_tracked=False)}


def accounted(release: str) -> dict[str, Accounted]:
    return {job.id: job for job in read_accounting(sample(release, "accounting"), gpus_tracked=True)}


@pytest.mark.parametrize("release", RELEASES)
def test_nodes(release: str) -> None:
    well, drained = read_nodes(sample(release, "nodes"))
    assert (well.name, well.flags, well.reason, well.reason_by, well.reason_at) == ("n1", frozenset(), None, None, None)
    assert (drained.name, drained.state, drained.flags) == ("n4", "IDLE", frozenset({"DRAIN"}))
    assert (drained.reason, drained.reason_by, drained.gpus) == ("ECC errors | gpu 3", "root", 4)
    assert (drained.hostname, drained.address) == ("n4", "10.0.0.4")
    assert abs((drained.reason_at or 0) - (drained.slurmd_start or 0)) < 5
    assert 1796047000 < (drained.boot_time or 0) < (drained.slurmd_start or 0)
    assert (drained.version or "").startswith(f"{release}.")


@pytest.mark.parametrize("release", RELEASES)
def test_live_jobs(release: str) -> None:
    jobs = live(release)
    assert set(jobs) == {"1", "2_0", "2_1", "3", "5_[1-9%2]", "6", "7+0", "7+1"}
    failed = jobs["1"]
    assert (failed.state, failed.exit, failed.derived_exit, failed.reason) == (
        "FAILED",
        "3:0",
        "5:0",
        "NonZeroExitCode",
    )
    assert (failed.nodes, failed.batch_host, failed.user, failed.uid) == (("n1", "n2"), "n1", "alice", 7001)
    assert (failed.comment, failed.workdir) == ('team-a "x" run', "/home/alice")
    assert (failed.array_job_id, failed.het_job_id) == (None, None)
    assert (failed.submit or 0) <= (failed.start or 0) <= (failed.end or 0)
    assert (jobs["3"].state, jobs["3"].end) == ("RUNNING", None)
    assert (jobs["2_1"].array_job_id, jobs["2_1"].array_task_id, jobs["2_0"].restarts) == (2, 1, 1)
    assert (jobs["5_[1-9%2]"].array_task_id, jobs["5_[1-9%2]"].nodes) == (None, ())
    assert jobs["6"].exit == "0:9"
    assert (jobs["7+1"].het_job_id, jobs["7+1"].het_offset, jobs["7+1"].raw_id) == (7, 1, 8)


@pytest.mark.parametrize("release", RELEASES)
def test_accounting(release: str) -> None:
    jobs = accounted(release)
    assert set(jobs) >= {"1", "2_0", "2_1", "3", "6", "7+0", "7+1"}
    failed = jobs["1"]
    assert (failed.state, failed.cluster, failed.nodes, failed.final) == ("FAILED", "lab", ("n1", "n2"), True)
    assert [(step.id, step.state, step.nodes) for step in failed.steps] == [
        ("1.batch", "FAILED", ("n1",)),
        ("1.0", "COMPLETED", ("n1", "n2")),
        ("1.1", "FAILED", ("n1",)),
    ]
    assert (jobs["3"].state, jobs["3"].end, jobs["3"].final) == ("RUNNING", None, False)
    assert (jobs["6"].exit, jobs["6"].steps[0].signal) == ("0:9", 9)
    assert failed.gpus == 0


def test_22_05_keeps_the_exit_code_of_a_failed_job_for_itself() -> None:
    failed = accounted("22.05")["1"]
    assert (failed.exit, failed.derived_exit, failed.user, failed.restarts) == (None, None, None, None)
    for release in RELEASES[1:]:
        failed = accounted(release)["1"]
        assert (failed.exit, failed.derived_exit, failed.user, failed.restarts) == ("3:0", "5:0", "alice", 0)
        assert [step.exit for step in failed.steps] == [3, 0, 5]


def test_a_requeued_run() -> None:
    for release in RELEASES[:2]:
        assert accounted(release)["2_0"].state == "REQUEUED"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"nodes": 5, "jobs": 5}',
        b'{"nodes": [5], "jobs": [{"job_id": "x"}]}',
        b'{"nodes": [{"state"',
        b"\xff",
    ],
)
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(SlurmRefused, match="unknown form"):
        read_nodes(data)
    with pytest.raises(SlurmRefused, match="unknown form"):
        read_live(data, gpus_tracked=True)
    with pytest.raises(SlurmRefused, match="unknown form"):
        read_accounting(data, gpus_tracked=True)
