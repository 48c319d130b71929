"""The ladder and the admins' queue on a real Slurm: a fault, a reboot that a person ran, the same fault, a replacement.

One machine's story in the order of the tests; another node is drained by somebody, a third one goes down by itself.
The commands are run as `review` prints them; `scontrol reboot` runs a RebootProgram that does nothing, and the test
powers the node off and boots it (``slurmd -b``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.outcome import Outcome, outcome
from tests.cluster.processes import wait_until

XID = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
RUN_YOURSELF = "Suggested command (run this yourself):"
#: By the clocks of kernel and boot a fault within this time may be before or after a boot.
APART_S = 5.0
SOON_S = 60.0


@pytest.fixture(scope="module")
def lab(release: str | None) -> Iterator[Cluster]:
    extra = ["AccountingStorageTRES=gres/gpu", "RebootProgram=/bin/true", "ResumeTimeout=120"]
    with scratch_slot() as folder, Cluster(folder, gpus=2, extra=extra, release=release) as made:
        made.start_daemon()
        yield made


def fails_with_a_lost_gpu(lab: Cluster) -> Outcome:
    """A job on n3 and n4; n4's kernel tells of a GPU, and the node lives on."""
    script = "#!/bin/sh\nsrun sleep 8\nexit 3\n"
    job = lab.sbatch(script, "-N2", "-w", "n3,n4", "--gpus-per-node=2")
    lab.wait_job(job, {"RUNNING"})
    time.sleep(2.0)
    lab.kernel_says("n4", XID)
    assert lab.wait_job(job) == "FAILED"
    return outcome(lab, job, ready=lambda one: "missing" not in {node["record"] for node in one["nodes"]})


def asked(found: Outcome) -> list[tuple[str, str, str, int]]:
    return [(one["target"], one["action"], one["rule"], one["step"]) for one in found.report["recommendations"]]


def drains(lab: Cluster, *options: str) -> dict[str, dict[str, Any]]:
    told = json.loads(lab.nccl_slurm("drains", "--json", *options).stdout)
    return {one["node"]: one for one in told["nodes"]}


def reviewed(lab: Cluster, which: str) -> dict[str, Any]:
    (found,) = json.loads(lab.nccl_slurm("review", which, "--json").stdout)["recommendations"]
    return dict(found)


def audit(lab: Cluster) -> list[tuple[int, str]]:
    """Number and what was done, oldest first."""
    rows = json.loads(lab.nccl_slurm("review", "--log", "--json").stdout)
    return [(row["recommendation"], row["what"]) for row in reversed(rows)]


def boots(lab: Cluster, node: str) -> list[str]:
    told = json.loads(lab.nccl_slurm("nodes", node, "--json").stdout)
    return [one["name"] for one in told["events"] if one["kind"] == "boot"]


def suggested(text: str) -> list[str]:
    return [line.strip() for line in text.partition(RUN_YOURSELF)[2].splitlines() if line.strip()]


def test_nodes_that_somebody_took_out_are_listed_and_nothing_is_said_of_them(lab: Cluster) -> None:
    lab.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=fan | check 'rack 4'")
    lab.power_off("n2")
    assert wait_until(lambda: set(drains(lab)) >= {"n1", "n2"}, SOON_S, every=0.5)
    assert wait_until(lambda: drains(lab)["n2"]["state"].startswith("DOWN"), SOON_S, every=0.5)
    shown = drains(lab)
    assert (shown["n1"]["state"], shown["n1"]["reason"]) == ("UP+DRAIN", "fan | check 'rack 4'")
    assert shown["n1"]["reason_by"].startswith("root") and shown["n1"]["recommendation"] is None
    assert {one["opinion"] for one in shown.values()} == {"no opinion: not observed"}
    assert set(drains(lab, "--node", "n[1,3]")) == {"n1"} and drains(lab, "--recommended") == {}
    lab.heal()
    assert wait_until(lambda: drains(lab) == {}, SOON_S, every=0.5)


def test_the_first_fault_asks_for_a_reboot(lab: Cluster) -> None:
    found = fails_with_a_lost_gpu(lab)
    assert asked(found) == [("n4", "reboot", "ladder.reboot", 1)]
    assert "; reboot n4; " in found.comment.casefold()
    row = drains(lab, "--recommended")["n4"]
    assert row["state"] == "UP" and row["recommendation"]["action"] == "reboot"
    assert (row["recommendation"]["id"], row["recommendation"]["state"]) == (1, "open")
    text = lab.nccl_slurm("review", "n4").stdout
    assert "GPU has fallen off the bus" in text and "#1 n4: reboot, step 1 (ladder.reboot), open" in text
    assert lab.node_state("n4") == "IDLE"


def test_it_is_snoozed_and_then_accepted(lab: Cluster) -> None:
    told = lab.nccl_slurm("review", "n4", "--snooze", "2h", "--note", "after the deadline").stdout
    assert "snoozed until" in told and "nothing was changed in Slurm" in told
    assert drains(lab)["n4"]["recommendation"]["state"] == "snoozed"
    told = lab.nccl_slurm("review", "1", "--accept", "--note", "now").stdout
    assert suggested(told) == reviewed(lab, "1")["commands"]
    assert any(line.startswith("scontrol reboot ASAP nextstate=RESUME ") for line in suggested(told))
    assert "not seen to be carried out" in str(reviewed(lab, "1")["outcome"])
    assert lab.nccl_slurm("review", "1", "--decline", check=False).returncode == 1
    assert lab.node_state("n4") == "IDLE" and audit(lab) == [(1, "opened"), (1, "snoozed"), (1, "accepted")]


def test_a_person_runs_what_was_printed(lab: Cluster) -> None:
    """Each line as it stands, in a shell; the node boots, and the outcome says so."""
    time.sleep(APART_S)
    for line in reviewed(lab, "1")["commands"]:
        lab.run(["sh", "-c", line])
    assert wait_until(lambda: "REBOOT" in lab.node_state("n4"), SOON_S, every=0.5)
    time.sleep(2.0)  # a poll sees who asked for it
    lab.power_off("n4")
    lab.boot("n4")
    lab.wait_idle(90.0)
    assert wait_until(lambda: boots(lab, "n4") == ["asked"], SOON_S, every=0.5), boots(lab, "n4")
    said = str(reviewed(lab, "1")["outcome"])
    assert said.startswith("carried out ") and said.endswith("; no such fault since")


def test_the_same_fault_after_it_asks_for_a_replacement(lab: Cluster) -> None:
    time.sleep(APART_S)
    found = fails_with_a_lost_gpu(lab)
    assert asked(found) == [("n4", "replace", "ladder.replace", 2)]
    (one,) = found.report["recommendations"]
    assert "and it came back" in one["why"] and "Replacing destroys root and secondary volumes" in one["why"]
    assert "; replace n4; " in found.comment.casefold()
    assert "the same kind of fault came back" in str(reviewed(lab, "1")["outcome"])
    assert reviewed(lab, "1")["state"] == "done"
    row = drains(lab)["n4"]["recommendation"]
    assert (row["id"], row["state"], row["action"], row["step"]) == (2, "open", "replace", 2)


def test_declined_it_is_not_asked_again_for_this_run(lab: Cluster) -> None:
    lab.nccl_slurm("review", "2", "--decline", "--note", "the board was changed by hand")
    assert drains(lab) == {}
    lab.stop_daemon()
    lab.start_daemon()
    time.sleep(5.0)
    assert drains(lab) == {}
    expected = ["opened", "snoozed", "accepted", "done", "opened", "declined"]
    assert [what for _, what in audit(lab)] == expected
    (told,) = (line for line in lab.nccl_slurm("review", "--log").stdout.splitlines() if "#2 n4 declined" in line)
    assert "the board was changed by hand" in told and " root" in told
    assert lab.node_state("n4") == "IDLE"
