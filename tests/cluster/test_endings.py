"""How jobs end on a real cluster, one test a way: what report and comment say, and that nobody is accused wrongly.

No torch here: the jobs are shell or plain Python, and the daemon's scope is set to all.
"""

from __future__ import annotations

import time

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end

SLEEP = "#!/bin/sh\nsrun sleep 300\n"


@pytest.fixture
def lab(everything: Cluster) -> Cluster:
    everything.heal()
    if not everything.alive("nccl-slurm"):
        everything.start_daemon()
    return everything


def running(lab: Cluster, *options: str, script: str = SLEEP) -> str:
    job = lab.sbatch(script, *options)
    lab.wait_job(job, {"RUNNING"})
    time.sleep(1.5)  # the step starts after the batch script
    return job


def test_success_says_nothing(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun true\n", "-N4", "--comment=run 7")
    found = outcome(lab, job, ready=lambda report: all(node["record"] != "missing" for node in report["nodes"]))
    assert (found.state, found.failure_class, found.comment) == ("COMPLETED", "benign", "run 7")
    assert {node["record"] for node in found.report["nodes"]} <= {"present", "late"}  # late on a loaded machine


def test_one_task_that_failed_is_named_with_the_users_comment_kept(lab: Cluster) -> None:
    script = '#!/bin/sh\nsrun sh -c "[ $SLURM_PROCID != 1 ] || exit 7"\n'.replace("$S", "\\$S")
    job = lab.sbatch(script, "-N2", "--comment=run 7")
    found = outcome(lab, job)
    assert (found.state, found.failure_class) == ("FAILED", "rank-exception")
    assert found.comment.startswith("run 7 [nccl-slurm: ") and found.comment.endswith(f"report {job}]")


def test_cancelled(lab: Cluster) -> None:
    job = running(lab, "-N2")
    lab.slurm("scancel", job, user="alice")
    found = outcome(lab, job)
    assert (found.state, found.failure_class, found.culprits) == ("CANCELLED", "preempt-cancel", frozenset())
    assert "nobody" in found.comment and "n1" not in found.comment


def test_cancelled_before_it_ran_is_ignored(lab: Cluster) -> None:
    job = lab.sbatch(SLEEP, "-N2", "--begin=now+1hour")
    lab.slurm("scancel", job)
    time.sleep(3)
    assert lab.nccl_slurm("report", job, check=False).returncode == 1
    assert lab.comment(job) == ""


def test_node_that_died_under_the_job(lab: Cluster) -> None:
    job = running(lab, "-N2", "--no-requeue", "-w", "n3,n4")
    lab.kill_slurmd("n4")
    found = outcome(lab, job)
    assert (found.state, found.failure_class) == ("NODE_FAIL", "slurm-node-fail")
    assert {host for _, host in found.culprits} == {"n4"}
    assert "n4" in found.comment and "n3" not in found.comment
    states = {node["name"]: node["state_at_end"] for node in found.report["nodes"]}
    assert states["n4"].startswith("DOWN") and states["n3"] == "UP"
    assert {item["action"] for item in found.report["recommendations"]} == {"investigate"}


def test_requeued_after_a_node_died(lab: Cluster) -> None:
    """The run that failed can't be reached in accounting any more: the job that waits again carries the line."""
    job = running(lab, "-N2", "-w", "n3,n4")
    lab.kill_slurmd("n4")
    first = outcome(lab, job, "--run", "1")
    assert (first.state, first.failure_class) == ("NODE_FAIL", "slurm-node-fail")
    line = f"n4 failed first (slurm-node-fail); investigate n4; report {job}"
    assert wait_until(lambda: line in lab.slurm("squeue", "-h", "-j", job, "-O", "Comment:200").stdout, 60)


def test_drained_while_it_ran_is_no_accusation(lab: Cluster) -> None:
    job = running(lab, "-N2", "-w", "n1,n2")
    lab.slurm("scontrol", "update", "nodename=n2", "state=drain", "reason=fan | noisy, gpu 3")
    time.sleep(2)
    lab.slurm("scancel", job, user="alice")
    found = outcome(lab, job)
    assert found.culprits == frozenset() and "n2" not in found.comment
    node = next(node for node in found.report["nodes"] if node["name"] == "n2")
    assert (node["state_at_start"], node["reason"]) == ("UP", "fan | noisy, gpu 3")
    assert "DRAIN" in node["state_at_end"]


def test_requeue_by_hand_then_failure(lab: Cluster) -> None:
    script = "#!/bin/sh\nif [ $SLURM_RESTART_COUNT ]; then srun false; else srun sleep 300; fi\n"
    job = running(lab, "-N1", script=script)
    lab.slurm("scontrol", "requeue", job)
    found = outcome(lab, job, "--run", "2", timeout=150)
    assert found.state == "FAILED" and found.comment.endswith(f"report {job}]")
    assert report(lab, job, "--run", "1")["job"]["state"] == "REQUEUED"


def test_array_of_three_with_one_failure(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun sh -c '[ $SLURM_ARRAY_TASK_ID != 3 ]'\n", "-N1", "--array=1-3", "--comment=mine")
    found = outcome(lab, f"{job}_3")
    assert found.state == "FAILED"
    time.sleep(6)
    comments = {task: lab.comment(f"{job}_{task}") for task in (1, 2, 3)}
    assert comments[1] == comments[2] == "mine"
    assert comments[3].startswith("mine [nccl-slurm: ") and f"report {job}_3]" in comments[3]


def test_one_component_of_a_het_job(lab: Cluster) -> None:
    script = "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\n"
    script += "srun --het-group=0 true\nsrun --het-group=1 sh -c 'exit 3'\n"
    job = lab.sbatch(script)
    found = outcome(lab, f"{job}+1")
    assert f"report {job}+1]" in found.comment
    assert lab.comment(f"{job}+1") == found.comment


def test_failed_step_inside_a_completed_job(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun sh -c 'exit 5'\ntrue\n", "-N2")
    found = outcome(lab, job)
    assert found.state == "COMPLETED" and f"report {job}]" in found.comment


def test_quotes_and_capitals_of_the_user_survive(lab: Cluster) -> None:
    text = 'User\'s Own "Tag" KEEP'
    job = lab.sbatch("#!/bin/sh\nsrun false\n", "-N1", f"--comment={text}")
    outcome(lab, job)
    assert wait_until(lambda: "[nccl-slurm: " in lab.sacct(job, "admincomment")[0]["admincomment"], 20)
    assert lab.comment(job) == text


def test_admin_comment_of_another_tool_stays(lab: Cluster) -> None:
    script = "#!/bin/sh\nsrun sleep 3\nexit 1\n"
    job = running(lab, "-N1", "--comment=It's mine", script=script)
    lab.slurm("scontrol", "update", f"jobid={job}", "admincomment=ticket 12")
    outcome(lab, job)
    assert (lab.comment(job), lab.sacct(job, "admincomment")[0]["admincomment"]) == ("It's mine", "ticket 12")
    assert f"job {job} run 1" in lab.nccl_slurm("status").stdout


def test_slurmdbd_away_delays_and_loses_nothing(lab: Cluster) -> None:
    lab.stop_slurmdbd()
    job = lab.sbatch("#!/bin/sh\nsrun false\n", "-N1", "--comment=keep")
    lab.wait_job(job)
    time.sleep(4)
    lab.start_slurmdbd()
    found = outcome(lab, job, timeout=120)
    assert wait_until(lambda: "[nccl-slurm: " in lab.comment(job), 60)
    assert found.state == "FAILED" and lab.comment(job).startswith("keep [nccl-slurm: ")


def test_output_that_lies(lab: Cluster) -> None:
    """Xid lines, other hosts, escapes, HTML, SQL: a job's print is no proof of anything about a machine."""
    lies = (
        "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.\n"
        "salloc: error: Node failure on n2\nsrun: error: Node failure on n3\n"
        "srun: error: n4: task 0: Killed\n"
        "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script> '; DROP TABLE runs; --\n[nccl-slurm: rank 0 n4]\n"
    )
    path = lab.home / "lies.txt"
    path.write_text(lies)
    job = lab.sbatch(f"#!/bin/sh\ncat {path}\nexit 1\n", "-N1", "-w", "n1")
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


def test_a_forged_record_is_refused(lab: Cluster) -> None:
    job = running(lab, "-N1", "-w", "n1")
    record = '{"schema": "nccl-slurm/node-record/1"}'
    (lab.shared / "new" / f"{job}.{int(time.time())}.n1.json").write_text(record)
    assert wait_until(lambda: "does not fit node-record/1" in lab.nccl_slurm("status").stdout, 15)
    assert any((lab.shared / "quarantine").iterdir())
    lab.slurm("scancel", job)


def test_reports_are_for_their_owner(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun false\n", "-N1")
    outcome(lab, job)
    assert report(lab, job, user="alice")["job"]["id"] == job
    other = lab.nccl_slurm("report", job, user="bob", check=False)
    assert (other.returncode, other.stdout) == (3, "") and len(other.stderr.splitlines()) == 1


def test_time_limit(lab: Cluster) -> None:
    job = lab.sbatch(SLEEP, "-N2", "-t1")
    found = outcome(lab, job, timeout=180)
    assert (found.state, found.failure_class, found.culprits) == ("TIMEOUT", "preempt-cancel", frozenset())


TWICE = """\
#!/bin/sh
srun --wait=3 -N2 -n4 -w n1,n2 {python} {program} --meet "first.$SLURM_JOB_ID" --mode=hang --rank=2 --timeout=20
srun -N2 -n4 -w n1,n3 {python} {program} --meet "second.$SLURM_JOB_ID" --mode=good
"""


def test_a_step_that_was_tried_again_on_another_node_is_judged_apart(lab: Cluster) -> None:
    """Dumps of ranks 0 and 1 on n1 are overwritten by the second step; rank 2 is on n2 first, on n3 then."""
    script = TWICE.format(python="/usr/bin/python3", program=lab.programs / "plain.py")
    job = lab.sbatch(script, "-N3", "-w", "n1,n2,n3", "--ntasks-per-node=2")
    found = outcome(lab, job, ready=lambda report: all(node["record"] != "missing" for node in report["nodes"]))
    why = [step["text"] for step in found.report["inferences"]], found.report["gaps"]
    assert (found.state, found.failure_class) == ("COMPLETED", "collective-missing-rank"), why
    assert found.culprits == {(2, "n2")} and "n3" not in found.comment
    told = [step["text"] for step in found.report["inferences"] if step["rule"] == "step.judged"]
    ended = "Step 1 completed after it, so its failure did not end the job."
    assert told == [f"Step 0 (FAILED) is judged, one of 2 of this job. {ended}"]
    assert {rank["host"] for rank in found.report["ranks"]} <= {"n1", "n2", None}
