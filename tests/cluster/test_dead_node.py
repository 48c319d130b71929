"""A node that dies under its job: the kernel log of the boot that ended tells why, when the node is back.

The node's kernel reports Xid 79, all its processes end at once, and some time later it boots: slurmd comes back, and
the boot unit closes the run that no epilog closed. By then the machine has had its reboot: what is left is to look
whether the fault comes back. As a machine's past stays, no node's kernel speaks in two tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.outcome import Outcome, outcome, report
from tests.cluster.processes import wait_until
from tests.cluster.stories import Stories, Story

SLEEP = "#!/bin/sh\nsrun sleep 300\n"
#: A node that dies → the other one of its job, which comes first and so has the batch script.
OTHER = {"n4": "n3", "n3": "n2", "n2": "n1"}
XID = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def cluster(release: str | None) -> Iterator[Cluster]:
    """In place of the one that all tests share: with GPUs, which accounting counts."""
    extra = ["AccountingStorageTRES=gres/gpu"]
    with scratch_slot() as folder, Cluster(folder, gpus=2, extra=extra, release=release) as made:
        made.start_daemon()
        yield made


def running(lab: Cluster, lost: str, *options: str, other: str = "", script: str = SLEEP) -> str:
    """On a machine of which a first job has told the boot id. Settings are a site's own: only jobs with GPUs, or with
    lines of NCCL or torch, are looked at."""
    first = lab.sbatch("#!/bin/sh\nsrun true\n", "-w", lost, "--gpus-per-node=2")
    assert lab.wait_job(first) == "COMPLETED"
    outcome(lab, first, ready=lambda found: node_of(found, lost)["record"] != "missing")
    job = lab.sbatch(
        script, "-N2", "-w", f"{other or OTHER[lost]},{lost}", "--gpus-per-node=2", "--comment=mine", *options
    )
    lab.wait_job(job, {"RUNNING"})
    assert wait_until(lambda: list((lab.spool / lost).glob(f"{job}.*/root/before.json")) != [], 20)
    time.sleep(1.0)  # the kernel's line is inside the run, by the second in which Slurm says that it began
    return job


def culprits(found: Outcome) -> set[tuple[int | None, str | None]]:
    return set(found.culprits)


def node_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(node for node in found["nodes"] if node["name"] == name)


def missing(found: dict[str, Any]) -> list[str]:
    """Nodes whose record has not come."""
    return [node["name"] for node in found["nodes"] if node["record"] == "missing"]


def recommended(found: Outcome) -> set[tuple[str | None, str]]:
    return {(one["target"], one["action"]) for one in found.report["recommendations"]}


def tells_the_lost_gpu(found: Outcome, lost: str, job: str) -> None:
    """This node alone, by its own kernel's word; each said once. It has booted since, which may have helped: a look."""
    assert (found.failure_class, culprits(found)) == ("gpu-hw-lost", {(None, lost)})
    culprit = found.report["verdict"]["culprits"][0]
    assert culprit["gpu"] == "0000:a1:00"
    cited = [fact for fact in found.report["facts"] if fact["id"] in culprit["evidence"]]
    assert [(fact["kind"], fact["host"], fact["trust"]) for fact in cited] == [("kernel.xid", lost, "root")]
    assert "Xid (PCI:0000:a1:00): 79" in cited[0]["text"]
    (asked,) = found.report["recommendations"]
    assert (asked["target"], asked["action"], asked["rule"]) == (lost, "investigate", "ladder.rebooted")
    assert asked["commands"] == [f"scontrol show node {lost}"]
    assert "Nothing like it on GPU 0000:a1:00 is in this machine's history" in asked["why"]
    assert "after this fault: look whether it comes back" in asked["why"]
    said = f"mine [nccl-slurm: {lost} stalled first (gpu-hw-lost, Xid 79); investigate {lost}; report {job}]"
    assert found.comment.casefold() == said.casefold()  # 22.05 writes comments in lower case
    roles = {node["name"]: node["role"] for node in found.report["nodes"]}
    assert roles == {OTHER[lost]: "compute", lost: "compute"}


def boots(lab: Cluster, node: str) -> None:
    """The node's boot unit, in the boot that runs."""
    done = lab.node_side(node, "boot")
    assert (done.returncode, done.stderr) == (0, "")


def the_record_comes_after_the_verdict(lab: Cluster) -> None:
    """And after the node's next job has begun, since slurmd does not wait for our unit: what the last boot's kernel
    said is the old job's, and not the new one's."""
    job = running(lab, "n4", "--no-requeue")
    lab.kernel_says("n4", XID)
    lab.power_off("n4")
    first = outcome(lab, job, ready=lambda report: missing(report) == ["n4"])  # n3's is late on a loaded machine
    assert (first.state, first.failure_class) == ("NODE_FAIL", "slurm-node-fail")
    assert recommended(first) == {("n4", "investigate")}
    assert "; investigate n4; " in first.comment
    following = next_job(lab)
    boots(lab, "n4")
    found = outcome(lab, job, ready=lambda report: node_of(report, "n4")["record"] == "late")
    tells_the_lost_gpu(found, "n4", job)
    innocent = outcome(lab, following)
    assert innocent.state == "FAILED" and recommended(innocent) <= {(None, "fix-code"), (None, "investigate")}
    assert "n4" not in innocent.comment and "xid" not in innocent.comment.casefold()


def is_back(lab: Cluster) -> bool:
    """Slurm may find out about the boot, and set the node down, after a first resume."""
    if lab.node_state("n4") == "IDLE":
        return True
    lab.slurm("scontrol", "update", "nodename=n4", "state=resume", check=False)
    return False


def next_job(lab: Cluster) -> str:
    """n4 boots and runs a job that will fail. Slurm keeps a node down that was booted under a job: it is resumed."""
    before = lab.node("n4")["SlurmdStartTime"]
    lab.boot("n4")
    assert wait_until(lambda: lab.node("n4")["SlurmdStartTime"] != before, 30, every=0.3)
    assert wait_until(lambda: is_back(lab), 60, every=1.0)
    job = lab.sbatch("#!/bin/sh\nsrun sleep 8\nexit 1\n", "-w", "n4", "--gpus-per-node=2", "--comment=mine")
    lab.wait_job(job, {"RUNNING"})
    return job


def the_record_comes_before_slurm_knows(lab: Cluster) -> None:
    """The node is back before SlurmdTimeout: Slurm learns of its death when its slurmd registers."""
    job = running(lab, "n3", "--no-requeue")
    lab.kernel_says("n3", XID)
    lab.power_off("n3")
    time.sleep(4.0)  # a boot that may be before the fault by the clocks, which err by a second each, does not count
    lab.boot("n3", slurmd=False)
    boots(lab, "n3")
    assert wait_until(lambda: not list((lab.shared / "new").iterdir()), 10)
    assert lab.job_states(job) == ["RUNNING"]
    assert report(lab, job)["status"] in ("pending", "live")
    lab.start_slurmd("n3", booted=True)
    found = outcome(lab, job, ready=lambda report: not missing(report))
    assert (found.state, node_of(found.report, "n3")["record"]) == ("NODE_FAIL", "present")
    tells_the_lost_gpu(found, "n3", job)
    told = {(gap["source"], gap["why"]) for gap in found.report["gaps"]}
    assert any(source == "n3: snapshot after" and "booted again" in why for source, why in told)


def a_run_without_epilog_on_a_node_that_did_not_boot(lab: Cluster) -> None:
    """The timer can't tell it from one that goes on, and leaves it. Slurm runs the epilog when slurmd is back, if
    that is within some 20 s from when it gave the node up."""
    job = running(lab, "n4", "--no-requeue", other="n1")
    lab.power_off("n4")
    (folder,) = (lab.spool / "n4").glob(f"{job}.*")
    assert lab.node_side("n4", "sweep").returncode == 0
    assert not (folder / "closed").exists() and (lab.spool / "n4" / job).is_symlink()
    first = outcome(lab, job)
    assert (first.failure_class, culprits(first)) == ("slurm-node-fail", {(None, "n4")})
    lab.start_slurmd("n4")
    found = outcome(lab, job, ready=lambda report: node_of(report, "n4")["record"] == "late")
    assert (folder / "closed").read_text() == "epilog\n"
    assert (found.failure_class, recommended(found)) == ("slurm-node-fail", {("n4", "investigate")})
    assert lab.node_side("n4", "sweep").returncode == 0
    assert not (lab.spool / "n4" / job).exists()


def a_job_that_survives_its_node(lab: Cluster) -> None:
    """--no-kill: accounting splits the run in two records; it is one, with both nodes, and speaks while it runs."""
    script = "#!/bin/sh\nsrun -N1 -n1 -w n1 sleep 55\nexit 3\n"
    job = running(lab, "n2", "--no-kill", script=script)
    lab.kernel_says("n2", XID)
    lab.power_off("n2")
    assert wait_until(lambda: "[nccl-slurm: live; n2 failed first" in live_comment(lab, job), 50)
    assert lab.job_states(job) == ["RUNNING"] and report(lab, job)["status"] == "live"
    first = outcome(lab, job, ready=lambda report: missing(report) == ["n2"])
    states = [row["state"] for row in lab.sacct(job, "state", duplicates=True)]
    assert states == ["RESIZING", "FAILED"]
    assert first.report["job"]["run"] == 1
    assert lab.nccl_slurm("report", job, "--run", "2", check=False).returncode == 1
    lab.boot("n2")
    boots(lab, "n2")
    found = outcome(lab, job, ready=lambda report: node_of(report, "n2")["record"] == "late")
    tells_the_lost_gpu(found, "n2", job)


def live_comment(lab: Cluster, job: str) -> str:
    return lab.slurm("squeue", "-h", "-j", job, "-O", "Comment:250", check=False).stdout


#: Stories of one wave have no node in common.
WAVES: tuple[tuple[Story, ...], ...] = (
    (the_record_comes_after_the_verdict, a_job_that_survives_its_node),
    (the_record_comes_before_slurm_knows, a_run_without_epilog_on_a_node_that_did_not_boot),
)


@pytest.fixture(scope="module")
def stories(cluster: Cluster) -> Iterator[Stories]:
    with Stories(cluster, *WAVES) as made:
        yield made


@pytest.mark.parametrize("story", [each for wave in WAVES for each in wave], ids=lambda story: story.__name__)
def test_a_node_dies(stories: Stories, story: Story) -> None:
    stories.play(story)
