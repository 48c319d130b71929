"""Jobs that are taken off their nodes, or held on them, by somebody else (docs/jobs.md): nobody is accused of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end

#: The second run ends by itself.
ONCE = "#!/bin/sh\n[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || srun sleep 300\nexit 0\n"


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
            found.append(json.loads(done.stdout))
        return all(one["status"] == "final" for one in found)

    assert wait_until(final, 300, every=1.0), [one["status"] for one in found]
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


def test_preempted_for_good(lab: Cluster) -> None:
    """What may not run again is cancelled where Slurm preempts by requeue."""
    job = lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N4", "--exclusive", "--no-requeue", "--comment=run 7")
    assert wait_until(lambda: step_runs(lab, job), 60)
    urgent = lab.sbatch("#!/bin/sh\nsrun true\n", "-N4", "--exclusive", "-p", "high", user="bob")
    assert lab.wait_job(urgent, timeout=120) == "COMPLETED"
    found = outcome(lab, job)
    assert (found.state, found.culprits) == ("PREEMPTED", frozenset())
    assert not heavy(found.report) and found.comment.startswith("run 7")


def heavy(told: dict[str, Any]) -> list[str]:
    return [one["target"] for one in told["recommendations"] if one["action"] in ("investigate", "reboot", "replace")]


def test_a_time_limit_that_its_tasks_ignore(lab: Cluster) -> None:
    """SIGKILL after KillWait: the signal is Slurm's, no rank died by itself."""
    deaf = "trap '' TERM; while :; do sleep 1; done"
    job = lab.sbatch(f'#!/bin/sh\ntrap "" TERM\nsrun sh -c "{deaf}"\n', "-N2", "-t1")
    found = outcome(lab, job, timeout=200)
    assert (found.state, found.failure_class, found.culprits) == ("TIMEOUT", "preempt-cancel", frozenset())
    assert not heavy(found.report)


def test_srun_by_itself(lab: Cluster) -> None:
    """No batch script and no output file: that a task failed is known, and nothing of why or which."""
    command = ["srun", "-N2", "-n2", "--comment=mine", "sh", "-c", "echo $SLURM_JOB_ID; exit $((SLURM_PROCID * 3))"]
    done = lab.slurm(*command, user="alice", check=False)
    job = done.stdout.split()[0]
    found = outcome(lab, job)
    assert (found.state, found.failure_class, found.culprits) == ("FAILED", "unknown", frozenset())
    assert found.report["job"]["exit"] == "3:0" and not heavy(found.report)
    assert found.comment.startswith("mine [nccl-slurm: ") and f"report {job}]" in found.comment


def test_salloc_with_a_step_that_fails(lab: Cluster) -> None:
    command = ["salloc", "-N2", "sh", "-c", "echo $SLURM_JOB_ID; srun -N2 sh -c 'exit 4'; true"]
    done = lab.slurm(*command, user="alice", check=False)
    found = outcome(lab, done.stdout.split()[0])
    assert (found.state, found.failure_class, found.culprits) == ("COMPLETED", "unknown", frozenset())
    assert not heavy(found.report)


def test_several_steps_of_which_the_second_fails(lab: Cluster) -> None:
    script = "#!/bin/sh\nsrun true\nsrun sh -c 'exit $((SLURM_PROCID * 5))'\nsrun true\n"
    found = outcome(lab, lab.sbatch(script, "-N2", "-n2"))
    steps = [one["text"] for one in found.report["inferences"] if one["rule"] == "step.judged"]
    assert (found.state, found.failure_class) == ("COMPLETED", "rank-exception")
    assert len(steps) == 1 and steps[0].startswith("Step 1 (FAILED) is judged")


def test_steps_that_overlap(lab: Cluster) -> None:
    """One of two steps side by side fails: what the other one says is not about it."""
    script = "#!/bin/sh\nsrun --overlap -N2 -n2 sh -c 'sleep 4' &\n"
    script += (
        "srun --overlap -N2 -n2 sh -c 'sleep 1; exit $((SLURM_PROCID * 6))' & b=$!\nwait $b; s=$?; wait; exit $s\n"
    )
    found = outcome(lab, lab.sbatch(script, "-N2"))
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert {rank for rank, _ in found.culprits} <= {1} and not heavy(found.report)


def test_jobs_shorter_than_a_second(lab: Cluster) -> None:
    jobs = [lab.sbatch("#!/bin/sh\nexit 3\n", "-N1", f"--comment=quick {number}") for number in range(6)]
    for number, job in enumerate(jobs):
        found = outcome(lab, job)
        assert found.state == "FAILED" and found.culprits == frozenset()
        assert found.comment.startswith(f"quick {number} [nccl-slurm: ") and f"report {job}]" in found.comment


def test_cancelled_while_its_prolog_runs(lab: Cluster) -> None:
    """The record of a prolog may come after the end, or never: nobody is accused of a run that did nothing."""
    jobs = []
    for _ in range(6):
        job = lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N2")
        lab.wait_job(job, {"RUNNING"})
        lab.slurm("scancel", job, user="alice")
        jobs.append(job)
    for job in jobs:
        found = outcome(lab, job)
        assert (found.state, found.culprits) == ("CANCELLED", frozenset()) and not heavy(found.report)


def test_two_jobs_that_share_a_node(lab: Cluster) -> None:
    """Each report holds its own job's words."""
    script = "#!/bin/sh\nsrun sh -c 'sleep 3; echo \"[rank0]: ValueError: of $WHO\" >&2; exit 1'\n"
    jobs = {who: lab.sbatch(script, "-N1", "-n1", "-w", "n1", f"--export=ALL,WHO={who}") for who in ("one", "two")}
    for who, job in jobs.items():
        found = outcome(lab, job)
        texts = " ".join(fact["text"] for fact in found.report["facts"])
        other = "two" if who == "one" else "one"
        assert f"of {who}" in texts and f"of {other}" not in texts
        assert found.failure_class == "rank-exception"


def test_tasks_of_an_array_that_fill_the_cluster(lab: Cluster) -> None:
    """Each tenth of 40 fails: four comments, and 36 jobs that are left alone."""
    script = "#!/bin/sh\nsrun -n1 sh -c '[ $((SLURM_ARRAY_TASK_ID % 10)) != 0 ]'\n"
    job = lab.sbatch(script, "-N1", "-n1", "--array=1-40%16", "--comment=mine")
    for task in (10, 20, 30, 40):
        found = outcome(lab, f"{job}_{task}")
        assert found.state == "FAILED" and f"report {job}_{task}]" in found.comment
    assert wait_until(lambda: lab.slurm("squeue", "-h", "-j", job, check=False).stdout.strip() == "", 120, every=1)
    rows = lab.sacct(job, "jobid,comment")
    said = {row["jobid"] for row in rows if "[nccl-slurm: " in row["comment"]}
    assert said == {f"{job}_{task}" for task in (10, 20, 30, 40)}
    assert all(row["comment"].startswith("mine") for row in rows) and len(rows) == 40
