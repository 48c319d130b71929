"""Jobs that are taken off their nodes, or held on them, by somebody else (docs/jobs.md): nobody is accused of it.

Those that don't harm each other run at the same time, and each test looks at its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end

#: The second run ends by itself.
ONCE = "#!/bin/sh\n[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || srun sleep 300\nexit 0\n"
QUICK = range(6)


SUSPENDED = "#!/bin/sh\nsrun -N2 -n2 sh -c 'sleep 6; exit $((SLURM_PROCID * 7))'\n"
STEPS = "#!/bin/sh\nsrun true\nsrun sh -c 'exit $((SLURM_PROCID * 5))'\nsrun true\n"
OVERLAP = """\
#!/bin/sh
srun --overlap -N2 -n2 sh -c 'sleep 4' &
srun --overlap -N2 -n2 sh -c 'sleep 1; exit $((SLURM_PROCID * 6))' & b=$!
wait $b; s=$?; wait; exit $s
"""
SHARED = "#!/bin/sh\nsrun sh -c 'sleep 3; echo \"[rank0]: ValueError: of $WHO\" >&2; exit 1'\n"
#: Each tenth of 40 fails.
ARRAY = "#!/bin/sh\nsrun -n1 sh -c '[ $((SLURM_ARRAY_TASK_ID % 10)) != 0 ]'\n"
#: Name → script and options of sbatch.
JOBS = {
    "steps": (STEPS, "-N2", "-n2"),
    "overlap": (OVERLAP, "-N2"),
    **{who: (SHARED, "-N1", "-n1", "-w", "n1", f"--export=ALL,WHO={who}") for who in ("one", "two")},
    **{f"quick {number}": ("#!/bin/sh\nexit 3\n", "-N1", f"--comment=quick {number}") for number in QUICK},
    "array": (ARRAY, "-N1", "-n1", "--array=1-40%16", "--comment=mine"),
}


def step_runs(lab: Cluster, job: str) -> bool:
    return f"{job}.0" in lab.slurm("squeue", "--steps", "-h", "-o", "%i", "-j", job).stdout.split()


@pytest.fixture(scope="module")
def preempted(everything: Cluster) -> Mapping[str, str]:
    """Two jobs fill the cluster until a more urgent one comes; what may not run again is cancelled where Slurm preempts
    by requeue."""
    lab = everything
    options = ("-N2", "--exclusive", "--comment=run 7")
    made = {
        "requeued": lab.sbatch(ONCE, "--requeue", *options),
        "for good": lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "--no-requeue", *options),
    }
    for job in made.values():
        assert wait_until(partial(step_runs, lab, job), 60, every=0.2)
    urgent = lab.sbatch("#!/bin/sh\nsrun true\n", "-N4", "--exclusive", "-p", "high", user="bob")
    assert lab.wait_job(urgent, timeout=120) == "COMPLETED"
    assert lab.wait_job(made["requeued"], timeout=180) == "COMPLETED"
    return made


@pytest.fixture(scope="module")
def jobs(everything: Cluster, preempted: Mapping[str, str]) -> Mapping[str, str]:
    """Ids of `JOBS`, and of one that an operator stops for as long as it takes to submit them. All have ended."""
    lab = everything
    suspended = lab.sbatch(SUSPENDED, "-N2")
    assert wait_until(lambda: step_runs(lab, suspended), 60, every=0.2)
    lab.slurm("scontrol", "suspend", suspended)
    assert lab.wait_job(suspended, {"SUSPENDED"}) == "SUSPENDED"
    made = {name: lab.sbatch(script, *options) for name, (script, *options) in JOBS.items()}
    lab.slurm("scontrol", "resume", suspended)
    made["suspended"] = suspended
    for job in made.values():
        lab.wait_job(job, timeout=180)
    return made


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


def test_preempted_and_run_again(everything: Cluster, preempted: Mapping[str, str]) -> None:
    job = preempted["requeued"]
    first, second = runs_of(everything, job, 2)
    assert first["job"]["state"] in ("PREEMPTED", "REQUEUED")
    assert first["verdict"]["culprits"] == []
    assert not [one for one in first["recommendations"] if one["action"] in ("reboot", "replace")]
    assert (second["job"]["state"], second["verdict"]["culprits"]) == ("COMPLETED", [])
    # what the first run may have been given while the job waited is replaced: nothing of it is left
    assert everything.comment(job) in ("run 7", f"run 7 [nccl-slurm: no failure seen (benign); report {job}]")


def test_preempted_for_good(everything: Cluster, preempted: Mapping[str, str]) -> None:
    found = outcome(everything, preempted["for good"])
    assert (found.state, found.culprits) == ("PREEMPTED", frozenset())
    assert not heavy(found.report) and found.comment.startswith("run 7")


def heavy(told: dict[str, Any]) -> list[str]:
    return [one["target"] for one in told["recommendations"] if one["action"] in ("investigate", "reboot", "replace")]


def test_suspended_for_a_while_then_failed(everything: Cluster, jobs: Mapping[str, str]) -> None:
    """A job that stands still because an operator stopped it is no hang; what fails later is named for itself."""
    found = outcome(everything, jobs["suspended"])
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert {rank for rank, _ in found.culprits} <= {1}
    assert f"report {jobs['suspended']}]" in found.comment


def test_several_steps_of_which_the_second_fails(everything: Cluster, jobs: Mapping[str, str]) -> None:
    found = outcome(everything, jobs["steps"])
    steps = [one["text"] for one in found.report["inferences"] if one["rule"] == "step.judged"]
    assert (found.state, found.failure_class) == ("COMPLETED", "rank-exception")
    assert len(steps) == 1 and steps[0].startswith("Step 1 (FAILED) is judged")


def test_steps_that_overlap(everything: Cluster, jobs: Mapping[str, str]) -> None:
    """One of two steps side by side fails: what the other one says is not about it."""
    found = outcome(everything, jobs["overlap"])
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert {rank for rank, _ in found.culprits} <= {1} and not heavy(found.report)


def test_jobs_shorter_than_a_second(everything: Cluster, jobs: Mapping[str, str]) -> None:
    for number in QUICK:
        job = jobs[f"quick {number}"]
        found = outcome(everything, job)
        assert found.state == "FAILED" and found.culprits == frozenset()
        assert found.comment.startswith(f"quick {number} [nccl-slurm: ") and f"report {job}]" in found.comment


def test_two_jobs_that_share_a_node(everything: Cluster, jobs: Mapping[str, str]) -> None:
    """Each report holds its own job's words."""
    for who, other in (("one", "two"), ("two", "one")):
        found = outcome(everything, jobs[who])
        texts = " ".join(fact["text"] for fact in found.report["facts"])
        assert f"of {who}" in texts and f"of {other}" not in texts
        assert found.failure_class == "rank-exception"


def test_tasks_of_an_array_that_fill_the_cluster(everything: Cluster, jobs: Mapping[str, str]) -> None:
    """Four comments, and 36 jobs that are left alone."""
    lab, job = everything, jobs["array"]
    for task in (10, 20, 30, 40):
        found = outcome(lab, f"{job}_{task}")
        assert found.state == "FAILED" and f"report {job}_{task}]" in found.comment
    rows = lab.sacct(job, "jobid,comment")
    said = {row["jobid"] for row in rows if "[nccl-slurm: " in row["comment"]}
    assert said == {f"{job}_{task}" for task in (10, 20, 30, 40)}
    assert all(row["comment"].startswith("mine") for row in rows) and len(rows) == 40


def test_srun_by_itself(everything: Cluster) -> None:
    """No batch script and no output file: that a task failed is known, and nothing of why or which."""
    command = ["srun", "-N2", "-n2", "--comment=mine", "sh", "-c", "echo $SLURM_JOB_ID; exit $((SLURM_PROCID * 3))"]
    done = everything.slurm(*command, user="alice", check=False)
    job = done.stdout.split()[0]
    found = outcome(everything, job)
    assert (found.state, found.failure_class, found.culprits) == ("FAILED", "unknown", frozenset())
    assert found.report["job"]["exit"] == "3:0" and not heavy(found.report)
    assert found.comment.startswith("mine [nccl-slurm: ") and f"report {job}]" in found.comment


def test_salloc_with_a_step_that_fails(everything: Cluster) -> None:
    command = ["salloc", "-N2", "sh", "-c", "echo $SLURM_JOB_ID; srun -N2 sh -c 'exit 4'; true"]
    done = everything.slurm(*command, user="alice", check=False)
    found = outcome(everything, done.stdout.split()[0])
    assert (found.state, found.failure_class, found.culprits) == ("COMPLETED", "unknown", frozenset())
    assert not heavy(found.report)


def test_cancelled_while_its_prolog_runs(everything: Cluster) -> None:
    """The record of a prolog may come after the end, or never: nobody is accused of a run that did nothing."""
    jobs = []
    for _ in range(6):
        job = everything.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N2")
        everything.wait_job(job, {"RUNNING"})
        everything.slurm("scancel", job, user="alice")
        jobs.append(job)
    for job in jobs:
        found = outcome(everything, job)
        assert (found.state, found.culprits) == ("CANCELLED", frozenset()) and not heavy(found.report)
