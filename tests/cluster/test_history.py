"""A machine's past on a real Slurm: drained, downed, failed, rebooted, replaced; by polls, slurmdbd and node records.

Each test has a node of its own, as history stays. `scontrol reboot` needs a RebootProgram; that one does nothing, and
the test powers the node off and boots it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

ECC = "ECC errors | gpu 3, 'quoted'"
XID = "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
#: Polls come once a second; this is for Slurm and for a machine with other work.
SOON_S = 40.0


@pytest.fixture(scope="module")
def cluster(release: str | None) -> Iterator[Cluster]:
    extra = ["RebootProgram=/bin/true", "ResumeTimeout=120"]
    with scratch_slot() as folder, Cluster(folder, extra=extra, release=release) as made:
        made.start_daemon()
        yield made


@pytest.fixture
def lab(cluster: Cluster) -> Cluster:
    cluster.heal()
    if not cluster.alive("nccl-slurm"):
        cluster.start_daemon()
    first_poll(cluster)
    return cluster


def first_poll(lab: Cluster) -> None:
    """Before it a node is not known."""
    assert wait_until(lambda: lab.nccl_slurm("nodes", "n4", check=False).returncode == 0, SOON_S, every=0.5)


def past(lab: Cluster, node: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.nccl_slurm("nodes", node, *options, "--json").stdout)
    return found


def events(lab: Cluster, node: str, *kinds: str) -> list[tuple[str, str]]:
    """Kind and name; states in which only slurmd is slow to answer are left out."""
    found = [(one["kind"], one["name"]) for one in past(lab, node)["events"] if one["kind"] in kinds]
    return [one for one in found if one != ("state", "UP+NOT_RESPONDING")]


def states(lab: Cluster, node: str) -> list[tuple[str, str]]:
    """State and reason, a state that only its flags changed in left out."""
    told = [(one["name"], one["text"]) for one in past(lab, node)["events"] if one["kind"] == "state"]
    kept = [one for one in told if one[0] != "UP+NOT_RESPONDING"]
    return [one for number, one in enumerate(kept) if number == 0 or one != kept[number - 1]]


def update(lab: Cluster, node: str, state: str, reason: str = "") -> None:
    lab.slurm("scontrol", "update", f"nodename={node}", f"state={state}", *([f"reason={reason}"] if reason else []))


def soon(true: Callable[[], bool], lab: Cluster, node: str) -> None:
    assert wait_until(true, SOON_S, every=0.5), json.dumps(past(lab, node), indent=1)


def polled(lab: Cluster, node: str, count: int) -> None:
    """So many states are known of the node."""
    soon(lambda: len(states(lab, node)) >= count, lab, node)


def test_drained_downed_failed_and_resumed(lab: Cluster) -> None:
    polled(lab, "n1", 1)
    before = len(states(lab, "n1"))
    for number, (state, reason) in enumerate((("drain", ECC), ("down", "NHC: check_hw_mcelog: x"), ("fail", "fan"))):
        update(lab, "n1", state, reason)
        polled(lab, "n1", before + 2 * number + 1)
        update(lab, "n1", "resume")
        polled(lab, "n1", before + 2 * number + 2)
    assert states(lab, "n1")[before:] == [
        ("UP+DRAIN", ECC),
        ("UP", ""),
        ("DOWN", "NHC: check_hw_mcelog: x"),
        ("UP", ""),
        ("UP+FAIL", "fan"),
        ("UP", ""),
    ]
    told = {one["text"]: one["data"] for one in past(lab, "n1")["events"] if one["text"]}
    assert (told[ECC]["owner"], told[ECC]["by"], told[ECC]["hardware"]) == ("person", "root", None)
    assert told["NHC: check_hw_mcelog: x"]["hardware"] is True
    assert events(lab, "n1", "boot", "replaced", "fault") == []


def test_booted_by_itself(lab: Cluster) -> None:
    lab.power_off("n2")
    lab.boot("n2")
    soon(lambda: len(events(lab, "n2", "boot")) == 1, lab, "n2")
    (boot,) = (one for one in past(lab, "n2")["events"] if one["kind"] == "boot")
    assert (boot["name"], boot["data"], boot["source"]) == ("unasked", {}, "poll")


def test_booted_by_slurm(lab: Cluster) -> None:
    """n1, as boots of one machine within two minutes are one."""
    lab.slurm("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=kernel update", "n1")
    soon(lambda: any("REBOOT_ISSUED" in name for _, name in events(lab, "n1", "state")), lab, "n1")
    lab.power_off("n1")
    lab.boot("n1")
    lab.wait_idle(60.0)
    soon(lambda: events(lab, "n1", "boot") == [("boot", "asked")], lab, "n1")
    (boot,) = (one for one in past(lab, "n1")["events"] if one["kind"] == "boot")
    assert (
        boot["data"]["reason"].removesuffix(" : reboot issued") == "kernel update"
    )  # Slurm adds it some time after the flag
    lab.slurm("scontrol", "reconfigure")
    time.sleep(5.0)
    assert len(events(lab, "n1", "boot")) == 1


def run_on(lab: Cluster, node: str, *kernel: str, ends: str = "COMPLETED", runs: int) -> None:
    """A job that sleeps while the kernel speaks; returns when so many runs are known of the node's machine."""
    script = f"#!/bin/sh\nsrun sleep 4\nexit {0 if ends == 'COMPLETED' else 3}\n"
    job = lab.sbatch(script, "-w", node)
    lab.wait_job(job, {"RUNNING"})
    time.sleep(1.5)
    lab.kernel_says(node, *kernel)
    assert lab.wait_job(job) == ends
    soon(lambda: sum(past(lab, node)["counts"][name] for name in ("well", "failed")) == runs, lab, node)


def test_faults_outcomes_and_a_replacement(lab: Cluster) -> None:
    (lab.scratch / "identity" / "n3").write_text("i-0aaaaaaaaaaaaaaaa\n")
    run_on(lab, "n3", runs=1)
    run_on(lab, "n3", XID, XID, ends="FAILED", runs=2)
    found = past(lab, "n3")
    assert found["identity"] == "i-0aaaaaaaaaaaaaaaa"
    assert found["counts"] == {"well": 1, "failed": 1, "named": 1}
    (fault,) = (one for one in found["events"] if one["kind"] == "fault")
    assert (fault["name"], fault["data"]["xid"], fault["data"]["count"]) == ("kernel.xid", 79, 2)
    time.sleep(8.0)  # clocks may err about a boot by five seconds: what was just before it may be the new machine's
    (lab.scratch / "identity" / "n3").write_text("i-0bbbbbbbbbbbbbbbb\n")
    before = lab.node("n3")["SlurmdStartTime"]
    lab.power_off("n3")
    lab.boot("n3")
    assert wait_until(lambda: lab.node("n3")["SlurmdStartTime"] != before, 30, every=0.3)  # and sets it down
    lab.heal()
    run_on(lab, "n3", runs=1)
    new = past(lab, "n3")
    assert (new["identity"], new["counts"]) == ("i-0bbbbbbbbbbbbbbbb", {"well": 1, "failed": 0, "named": 0})
    assert events(lab, "n3", "fault", "boot", "replaced") == [("replaced", "came")]
    old = past(lab, "n3", "--machine", "i-0aaaaaaaaaaaaaaaa")
    kinds = [one["kind"] for one in old["events"]]
    assert kinds.count("fault") == 1 and [one["name"] for one in old["events"]][-1] == "gone"
    assert old["counts"] == {"well": 1, "failed": 1, "named": 1}
    text = lab.nccl_slurm("nodes", "n3").stdout
    assert "earlier   i-0aaaaaaaaaaaaaaaa from " in text and "came from i-0aaaaaaaaaaaaaaaa" in text


def test_what_happened_while_the_daemon_was_away(lab: Cluster) -> None:
    """n4 is drained and resumed, downed for good, and the daemon learns of both from slurmdbd, and of neither twice."""
    polled(lab, "n4", 1)
    update(lab, "n4", "drain", "before")
    soon(lambda: states(lab, "n4")[-1] == ("UP+DRAIN", "before"), lab, "n4")
    known = states(lab, "n4")
    lab.stop_daemon()
    time.sleep(2.0)
    update(lab, "n4", "resume")
    time.sleep(3.0)
    update(lab, "n4", "drain", ECC)
    time.sleep(3.0)
    update(lab, "n4", "resume")
    time.sleep(3.0)
    update(lab, "n4", "down", "Action:Replace")
    time.sleep(5.0)
    lab.start_daemon()
    soon(lambda: states(lab, "n4")[-1][1] == "Action:Replace", lab, "n4")
    time.sleep(3.0)
    expected = [*known, ("UP", ""), ("UP+DRAIN", ECC), ("UP", ""), ("DOWN", "Action:Replace")]
    assert states(lab, "n4") == expected
    sources = [one["source"] for one in past(lab, "n4")["events"] if one["kind"] == "state"]
    assert sources[-4:] == ["slurmdbd"] * 4
    lab.stop_daemon()
    lab.start_daemon()
    time.sleep(3.0)
    assert states(lab, "n4") == expected


def test_a_store_that_is_new_learns_of_all_from_slurmdbd(lab: Cluster) -> None:
    """After the tests before: the events that slurmdbd has of n1, in a store without any."""
    lab.stop_daemon()
    for path in (lab.scratch / "daemon").glob("store.db*"):
        path.unlink()
    lab.start_daemon()
    first_poll(lab)
    polled(lab, "n1", 3)
    told = states(lab, "n1")
    assert ("UP+DRAIN", ECC) in told and ("UP+FAIL", "fan") in told
    asked = [one for one in past(lab, "n1")["events"] if one["kind"] == "boot" and one["name"] == "asked"]
    assert [one["source"] for one in asked] == ["slurmdbd"]
