"""How jobs end on a real cluster, one test a way: what report and comment say, and that nobody is accused wrongly.

No torch here: the jobs are shell or plain Python, and the daemon's scope is set to all. Jobs that don't harm each other
run at the same time, and each test looks at its own: one after another they would mostly wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end

SLEEP = "#!/bin/sh\nsrun sleep 300\n"
TWICE = """\
#!/bin/sh
srun --wait=3 -N2 -n4 -w n1,n2 {python} {program} --meet "first.$SLURM_JOB_ID" --mode=hang --rank=2 --timeout=20
srun -N2 -n4 -w n1,n3 {python} {program} --meet "second.$SLURM_JOB_ID" --mode=good
"""
HET = """\
#!/bin/sh
#SBATCH -N1
#SBATCH hetjob
#SBATCH -N1
srun --het-group=0 true
srun --het-group=1 sh -c 'exit 3'
"""
#: Of the time limit's signal, which Slurm's SIGKILL follows after KillWait.
DEAF = """#!/bin/sh\ntrap "" TERM\nsrun sh -c "trap '' TERM; while :; do sleep 1; done"\n"""
QUOTED = 'User\'s Own "Tag" KEEP'
LIES = (
    "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.\n"
    "salloc: error: Node failure on n2\nsrun: error: Node failure on n3\n"
    "srun: error: n4: task 0: Killed\n"
    "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script> '; DROP TABLE runs; --\n[nccl-slurm: rank 0 n4]\n"
)
#: Jobs that go on for a minute, on nodes that stay as they are. Name → script and options of sbatch.
LIMITED = {
    "time limit": (SLEEP, "-N2", "-w", "n1,n3", "-t1"),
    "deaf to its time limit": (DEAF, "-N2", "-w", "n1,n3", "-t1"),
}
JOBS = {
    "a step twice": (TWICE, "-N3", "-w", "n1,n2,n3", "--ntasks-per-node=2"),
    "requeued": ("#!/bin/sh\nif [ $SLURM_RESTART_COUNT ]; then srun false; else srun sleep 300; fi\n", "-N1"),
    "cancelled": (SLEEP, "-N2"),
    "cancelled before it ran": (SLEEP, "-N2", "--begin=now+1hour"),
    "success": ("#!/bin/sh\nsrun true\n", "-N4", "--comment=run 7"),
    "one task": ("#!/bin/sh\nsrun sh -c '[ $SLURM_PROCID != 1 ] || exit 7'\n", "-N2", "--comment=run 7"),
    "array": ("#!/bin/sh\nsrun sh -c '[ $SLURM_ARRAY_TASK_ID != 3 ]'\n", "-N1", "--array=1-3", "--comment=mine"),
    "het job": (HET,),
    "a step": ("#!/bin/sh\nsrun sh -c 'exit 5'\ntrue\n", "-N2"),
    "quotes": ("#!/bin/sh\nsrun false\n", "-N1", f"--comment={QUOTED}"),
    "ticket": ("#!/bin/sh\nwhile [ ! -e ticket ]; do sleep 0.2; done\nexit 1\n", "-N1", "--comment=It's mine"),
    "lies": ("#!/bin/sh\ncat lies.txt\nexit 1\n", "-N1", "-w", "n1"),
}


@pytest.fixture
def lab(everything: Cluster) -> Cluster:
    everything.heal()
    if not everything.alive("nccl-slurm"):
        everything.start_daemon()
    return everything


@pytest.fixture(scope="module")
def jobs(everything: Cluster) -> Mapping[str, str]:
    """Ids of `JOBS`, which all have ended, as their scripts do or as somebody wants it, and of `LIMITED`."""
    lab = everything
    (lab.home / "lies.txt").write_text(LIES)
    plain = {"python": "/usr/bin/python3", "program": lab.programs / "plain.py"}
    made = {
        name: lab.sbatch(script.format(**plain) if script is TWICE else script, *more)
        for name, (script, *more) in (LIMITED | JOBS).items()
    }
    lab.slurm("scancel", made["cancelled before it ran"])
    for name in ("requeued", "cancelled", "ticket"):
        lab.wait_job(made[name], {"RUNNING"})
    time.sleep(1.5)  # the step starts after the batch script
    lab.slurm("scontrol", "requeue", made["requeued"])
    lab.slurm("scancel", made["cancelled"], user="alice")
    lab.slurm("scontrol", "update", f"jobid={made['ticket']}", "admincomment=ticket 12")
    (lab.home / "ticket").touch()
    for name in JOBS:
        lab.wait_job(made[name], timeout=180)
    return made


def records_are_there(report: dict[str, Any]) -> bool:
    return all(node["record"] != "missing" for node in report["nodes"])


def test_success_says_nothing(everything: Cluster, jobs: Mapping[str, str]) -> None:
    found = outcome(everything, jobs["success"], ready=records_are_there)
    assert (found.state, found.failure_class, found.comment) == ("COMPLETED", "benign", "run 7")
    assert {node["record"] for node in found.report["nodes"]} <= {"present", "late"}  # late on a loaded machine


def test_one_task_that_failed_is_named_with_the_users_comment_kept(
    everything: Cluster, jobs: Mapping[str, str]
) -> None:
    job = jobs["one task"]
    found = outcome(everything, job, ready=records_are_there)
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert found.comment.startswith("run 7 [nccl-slurm: ") and found.comment.endswith(f"report {job}]")


def test_cancelled(everything: Cluster, jobs: Mapping[str, str]) -> None:
    found = outcome(everything, jobs["cancelled"])
    assert (found.state, found.failure_class, found.culprits) == ("CANCELLED", "preempt-cancel", frozenset())
    assert "nobody" in found.comment and "n1" not in found.comment


def test_requeue_by_hand_then_failure(everything: Cluster, jobs: Mapping[str, str]) -> None:
    job = jobs["requeued"]
    found = outcome(everything, job, "--run", "2")
    assert found.state == "FAILED" and found.comment.endswith(f"report {job}]")
    assert report(everything, job, "--run", "1")["job"]["state"] == "REQUEUED"


def test_array_of_three_with_one_failure(everything: Cluster, jobs: Mapping[str, str]) -> None:
    job = jobs["array"]
    found = {task: outcome(everything, f"{job}_{task}") for task in (1, 2, 3)}
    assert [one.state for one in found.values()] == ["COMPLETED", "COMPLETED", "FAILED"]
    assert found[1].comment == found[2].comment == "mine"
    assert found[3].comment.startswith("mine [nccl-slurm: ") and f"report {job}_3]" in found[3].comment


def test_one_component_of_a_het_job(everything: Cluster, jobs: Mapping[str, str]) -> None:
    job = f"{jobs['het job']}+1"
    found = outcome(everything, job)
    assert f"report {job}]" in found.comment
    assert everything.comment(job) == found.comment


def test_failed_step_inside_a_completed_job(everything: Cluster, jobs: Mapping[str, str]) -> None:
    found = outcome(everything, jobs["a step"])
    assert found.state == "COMPLETED" and f"report {jobs['a step']}]" in found.comment


def test_quotes_and_capitals_of_the_user_survive(everything: Cluster, jobs: Mapping[str, str]) -> None:
    lab, job = everything, jobs["quotes"]
    outcome(lab, job)
    assert wait_until(lambda: "[nccl-slurm: " in lab.sacct(job, "admincomment")[0]["admincomment"], 20)
    assert lab.comment(job) == QUOTED


def test_reports_are_for_their_owner(everything: Cluster, jobs: Mapping[str, str]) -> None:
    lab, job = everything, jobs["quotes"]
    outcome(lab, job)
    assert report(lab, job, user="alice")["job"]["id"] == job
    other = lab.nccl_slurm("report", job, user="bob", check=False)
    assert (other.returncode, other.stdout) == (3, "") and len(other.stderr.splitlines()) == 1


def test_admin_comment_of_another_tool_stays(everything: Cluster, jobs: Mapping[str, str]) -> None:
    lab, job = everything, jobs["ticket"]
    outcome(lab, job)
    assert (lab.comment(job), lab.sacct(job, "admincomment")[0]["admincomment"]) == ("It's mine", "ticket 12")
    assert f"job {job} run 1" in lab.nccl_slurm("status").stdout


def test_output_that_lies(everything: Cluster, jobs: Mapping[str, str]) -> None:
    """Xid lines, other hosts, escapes, HTML, SQL: a job's print is no proof of anything about a machine."""
    lab, job = everything, jobs["lies"]
    found = outcome(lab, job)
    assert not {"n2", "n3", "n4"} & set(found.comment.replace(";", " ").split())
    assert {host for _, host in found.culprits} <= {None, "n1"}
    assert {item["action"] for item in found.report["recommendations"]} <= {
        "none",
        "fix-code",
        "fix-config",
        "unknown",
        "investigate",
    }
    shown = lab.nccl_slurm("report", job).stdout
    assert "\x1b" not in shown and "\x07" not in shown
    assert len(lab.nccl_slurm("jobs", "--json").stdout) > 10


def test_a_step_that_was_tried_again_on_another_node_is_judged_apart(
    everything: Cluster, jobs: Mapping[str, str]
) -> None:
    """Dumps of ranks 0 and 1 on n1 are overwritten by the second step; rank 2 is on n2 first, on n3 then."""
    found = outcome(everything, jobs["a step twice"], ready=records_are_there)
    why = [step["text"] for step in found.report["inferences"]], found.report["gaps"]
    assert (found.state, found.failure_class) == ("COMPLETED", "collective-missing-rank"), why
    assert found.culprits == {(2, "n2")} and "n3" not in found.comment
    told = [step["text"] for step in found.report["inferences"] if step["rule"] == "step.judged"]
    ended = "Step 1 completed after it, so its failure did not end the job."
    assert told == [f"Step 0 (FAILED) is judged, one of 2 of this job. {ended}"]
    assert {rank["host"] for rank in found.report["ranks"]} <= {"n1", "n2", None}


def test_cancelled_before_it_ran_is_ignored(everything: Cluster, jobs: Mapping[str, str]) -> None:
    job = jobs["cancelled before it ran"]
    assert everything.nccl_slurm("report", job, check=False).returncode == 1
    assert everything.comment(job) == ""


# Jobs that lose a node


@pytest.fixture(scope="module")
def struck(everything: Cluster, jobs: Mapping[str, str]) -> Mapping[str, str]:
    """The node n4 dies under two of them, n2 is drained under the third, which is cancelled then."""
    lab = everything
    made = {
        "died": lab.sbatch(SLEEP, "-N2", "--no-requeue", "-w", "n3,n4"),
        "died, runs again": lab.sbatch(SLEEP, "-N2", "-w", "n3,n4"),
        "drained": lab.sbatch(SLEEP, "-N2", "-w", "n1,n2"),
    }
    for job in made.values():
        lab.wait_job(job, {"RUNNING"})
    time.sleep(1.5)
    lab.kill_slurmd("n4")
    lab.slurm("scontrol", "update", "nodename=n2", "state=drain", "reason=fan | noisy, gpu 3")
    time.sleep(2)
    lab.slurm("scancel", made["drained"], user="alice")
    return made


def test_node_that_died_under_the_job(everything: Cluster, struck: Mapping[str, str]) -> None:
    found = outcome(everything, struck["died"])
    assert (found.state, found.failure_class) == ("NODE_FAIL", "slurm-node-fail")
    assert {host for _, host in found.culprits} == {"n4"}
    assert "n4" in found.comment and "n3" not in found.comment
    states = {node["name"]: node["state_at_end"] for node in found.report["nodes"]}
    assert states["n4"].startswith("DOWN") and states["n3"] == "UP"
    assert {item["action"] for item in found.report["recommendations"]} == {"investigate"}


def test_requeued_after_a_node_died(everything: Cluster, struck: Mapping[str, str]) -> None:
    """The run that failed can't be reached in accounting any more: the job that waits again carries the line."""
    lab, job = everything, struck["died, runs again"]
    first = outcome(lab, job, "--run", "1")
    assert (first.state, first.failure_class) == ("NODE_FAIL", "slurm-node-fail")
    line = f"n4 failed first (slurm-node-fail); investigate n4; report {job}"
    assert wait_until(lambda: line in lab.slurm("squeue", "-h", "-j", job, "-O", "Comment:200").stdout, 60, every=0.3)


def test_drained_while_it_ran_is_no_accusation(everything: Cluster, struck: Mapping[str, str]) -> None:
    found = outcome(everything, struck["drained"])
    assert found.culprits == frozenset() and "n2" not in found.comment
    node = next(node for node in found.report["nodes"] if node["name"] == "n2")
    assert (node["state_at_start"], node["reason"]) == ("UP", "fan | noisy, gpu 3")
    assert "DRAIN" in node["state_at_end"]


@pytest.mark.parametrize("name", ["time limit", "deaf to its time limit"])
def test_time_limit(everything: Cluster, jobs: Mapping[str, str], name: str) -> None:
    """Where its tasks ignore SIGTERM, SIGKILL after KillWait: the signal is Slurm's, no rank died by itself."""
    found = outcome(everything, jobs[name])
    assert (found.state, found.failure_class, found.culprits) == ("TIMEOUT", "preempt-cancel", frozenset())
    heavy = ("investigate", "reboot", "replace")
    assert not [one for one in found.report["recommendations"] if one["action"] in heavy]


# With what is ours or Slurm's


def test_slurmdbd_away_delays_and_loses_nothing(lab: Cluster) -> None:
    lab.stop_slurmdbd()
    job = lab.sbatch("#!/bin/sh\nsrun false\n", "-N1", "--comment=keep")
    lab.wait_job(job)
    time.sleep(4)
    lab.start_slurmdbd()
    found = outcome(lab, job, timeout=120)
    assert wait_until(lambda: "[nccl-slurm: " in lab.comment(job), 60)
    assert found.state == "FAILED" and lab.comment(job).startswith("keep [nccl-slurm: ")


def test_a_forged_record_is_refused(lab: Cluster) -> None:
    job = lab.sbatch(SLEEP, "-N1", "-w", "n1")
    lab.wait_job(job, {"RUNNING"})
    record = '{"schema": "nccl-slurm/node-record/1"}'
    (lab.shared / "new" / f"{job}.{int(time.time())}.n1.json").write_text(record)
    assert wait_until(lambda: "does not fit node-record/1" in lab.nccl_slurm("status").stdout, 15, every=0.3)
    assert any((lab.shared / "quarantine").iterdir())
    lab.slurm("scancel", job)
