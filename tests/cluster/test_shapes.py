"""Jobs that are taken off their nodes, or held on them, by somebody else (docs/jobs.md): nobody is accused of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until

#: The second run ends by itself.
ONCE = "#!/bin/sh\n[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || srun sleep 300\nexit 0\n"


@pytest.fixture(scope="module")
def everything(cluster: Cluster) -> Iterator[Cluster]:
    cluster.heal()
    before = cluster.daemon_config.read_text()
    cluster.write_daemon_config(before + '\n[scope]\ndefault = "all"\n')
    if cluster.alive("nccl-slurm"):
        cluster.stop_daemon()
    cluster.start_daemon()
    yield cluster
    cluster.stop_daemon()
    cluster.write_daemon_config(before)


@pytest.fixture
def lab(everything: Cluster) -> Cluster:
    everything.heal()
    return everything


def step_runs(lab: Cluster, job: str) -> bool:
    return f"{job}.0" in lab.slurm("squeue", "--steps", "-h", "-o", "%i", "-j", job).stdout.split()


def runs_of(lab: Cluster, job: str, count: int) -> list[dict[str, Any]]:
    """Reports of the first ``count`` runs, once each is final."""
    found: list[dict[str, Any]] = []

    def final() -> bool:
        found[:] = []
        for run in range(1, count + 1):
            done = lab.nccl_slurm("report", job, "--json", "--run", str(run), check=False)
            if done.returncode:
                return False
            found.append(report(lab, job, "--run", str(run)))
        return all(one["status"] == "final" for one in found)

    assert wait_until(final, 300, every=0.5), [one["status"] for one in found]
    return found


def test_preempted_and_run_again(lab: Cluster) -> None:
    job = lab.sbatch(ONCE, "-N4", "--exclusive", "--requeue", "--comment=run 7")
    assert wait_until(lambda: step_runs(lab, job), 60)
    urgent = lab.sbatch("#!/bin/sh\nsrun true\n", "-N4", "--exclusive", "-p", "high", user="bob")
    assert lab.wait_job(urgent, timeout=120) == "COMPLETED"
    assert lab.wait_job(job, timeout=180) == "COMPLETED"
    first, second = runs_of(lab, job, 2)
    assert first["job"]["state"] in ("PREEMPTED", "REQUEUED")
    assert first["verdict"]["culprits"] == []
    assert not [one for one in first["recommendations"] if one["action"] in ("reboot", "replace")]
    assert (second["job"]["state"], second["verdict"]["culprits"]) == ("COMPLETED", [])
    # what the first run may have been given while the job waited is replaced: nothing of it is left
    assert lab.comment(job) in ("run 7", f"run 7 [nccl-slurm: no failure seen (benign); report {job}]")


def test_suspended_for_a_while_then_failed(lab: Cluster) -> None:
    """A job that stands still because an operator stopped it is no hang; what fails later is named for itself."""
    script = "#!/bin/sh\nsrun -N2 -n2 sh -c 'sleep 6; exit $((SLURM_PROCID * 7))'\n"
    job = lab.sbatch(script, "-N2")
    assert wait_until(lambda: step_runs(lab, job), 60)
    lab.slurm("scontrol", "suspend", job)
    assert lab.wait_job(job, {"SUSPENDED"}) == "SUSPENDED"
    lab.slurm("scontrol", "resume", job)
    found = outcome(lab, job)
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert {rank for rank, _ in found.culprits} <= {1}
    assert f"report {job}]" in found.comment
