"""The doctor on four real nodes: beside a job, by short jobs on idle nodes, by SSH; one hangs, one can't be reached,
one has a fault. A node's fault lies in a tree that stands in for its files (``--sysroot``)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm import schema
from nccl_slurm.model import READER_STEP
from tests.cluster.harness import NODES, Cluster
from tests.cluster.processes import wait_until
from tests.collect.sshd import Sshd, keys, running, skip_reason

#: Whose tree says that shared memory of running jobs is removed.
FAULTY = "n1"
CHECKS = ("remove-ipc", "node-state", "munge", "stuck-jobs")
ONLY = ("--only", ",".join(f"scheduler.{name}" for name in CHECKS), "--no-aws")


@pytest.fixture(scope="module")
def trees(cluster: Cluster) -> Iterator[Path]:
    """Of each node: logind.conf, and what a job's owner may read of it."""
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-trees-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for node in NODES:
            conf = folder / node / "etc" / "systemd" / "logind.conf"
            conf.parent.mkdir(parents=True)
            conf.write_text(f"[Login]\nRemoveIPC={'yes' if node == FAULTY else 'no'}\n")
        yield folder


@pytest.fixture
def lab(cluster: Cluster) -> Cluster:
    cluster.heal()
    return cluster


def doctor(lab: Cluster, trees: Path, *words: str, user: str | None = None) -> dict[str, Any]:
    done = lab.nccl_slurm("doctor", *words, *ONLY, "--sysroot", f"{trees}/%n", "--json", user=user, check=False)
    told = schema.loads(done.stdout.encode(), "doctor/1")
    assert done.returncode == told["exit"], done.stderr
    return told


def found(told: Mapping[str, Any], check: str) -> set[tuple[str, str | None, tuple[str, ...]]]:
    return {(one["status"], one["priority"], tuple(one["nodes"])) for one in told["findings"] if one["check"] == check}


@contextmanager
def hanging(lab: Cluster, node: str) -> Iterator[None]:
    """Its slurmd takes connections and says nothing."""
    pid = int((lab.scratch / "pid" / f"slurmd.{node}.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("user", ["alice", None])
def test_beside_a_job(lab: Cluster, trees: Path, user: str | None) -> None:
    """As its owner, and as root, who becomes its owner. The job's accounting shows no failed step."""
    job = lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N3", "-w", "n[1-3]")
    lab.wait_job(job, {"RUNNING"})
    told = doctor(lab, trees, "--job", job, user=user)
    assert told["nodes"]["ways"] == {"job-step": ["n1", "n2", "n3"]}
    assert found(told, "scheduler.remove-ipc") == {("WARN", "P1", ("n1",)), ("PASS", None, ("n2", "n3"))}
    assert found(told, "scheduler.munge") == {("PASS", None, ()), ("PASS", None, ("n1", "n2", "n3"))}
    assert [one["text"] for one in told["findings"] if one["check"] == "scheduler.stuck-jobs"] == [
        "none of 1 jobs is stuck"
    ]
    assert (told["exit"], told["job"]) == (1, job)
    lab.slurm("scancel", job, user="alice")
    lab.wait_job(job)
    rows = [row for row in lab.sacct(job, "jobname,state,exitcode", steps=True) if row["jobname"] == READER_STEP]
    assert [(row["state"], row["exitcode"]) for row in rows] == [("COMPLETED", "0:0")] * 3


@contextmanager
def stray(lab: Cluster, key: str) -> Iterator[str]:
    """A file that nobody can execute, in the folder of Prolog or Epilog."""
    shown = lab.slurm("scontrol", "show", "config").stdout
    folder = re.search(rf"^{key}\S*\s*= (\S+/)\*$", shown, re.MULTILINE)
    assert folder, shown
    path = Path(folder.group(1)) / "90-site.bak"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    try:
        yield str(path)
    finally:
        path.unlink()


def test_a_file_in_the_prolog_folder_that_would_drain_the_nodes(lab: Cluster) -> None:
    """Beside a job whose prolog has run already, and gone before another one begins."""
    job = lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N2", "-w", "n[1-2]")
    lab.wait_job(job, {"RUNNING"})
    words = ("doctor", "--job", job, "--only", "scheduler.hooks,scheduler.own-hooks", "--no-aws", "--json")
    before = json.loads(lab.nccl_slurm(*words).stdout)
    assert found(before, "scheduler.hooks") == {("PASS", None, ("n1", "n2"))}
    assert found(before, "scheduler.own-hooks") == {("PASS", None, ())}  # below the scratch folder's prefix
    with stray(lab, "Prolog") as path:
        told = json.loads(lab.nccl_slurm(*words, check=False).stdout)
    assert found(told, "scheduler.hooks") == {("FAIL", "P0", ("n1", "n2"))} and told["exit"] == 1
    assert any(f"{path} can be executed by nobody" in one["text"] for one in told["findings"])


@pytest.mark.parametrize(("key", "answered"), [("Prolog", 0), ("Epilog", 1)])
def test_a_look_at_idle_nodes_drains_one_at_most_and_says_so(lab: Cluster, key: str, answered: int) -> None:
    words = ("doctor", "--all-idle", "--only", "scheduler.hooks,scheduler.node-state,node.disk", "--no-aws")
    with stray(lab, key) as path:
        told = json.loads(lab.nccl_slurm(*words, "--json", check=False).stdout)
        out = {name: state for name, state in lab.node_states().items() if state != "IDLE"}
    assert len(told["nodes"]["ways"].get("job", [])) == answered
    ((first, state),) = out.items()
    assert "DRAIN" in state
    (drained,) = [one for one in told["findings"] if one["check"] == "scheduler.node-state" and one["status"] == "FAIL"]
    assert drained["nodes"] == [first] and "drained by the job of this look" in drained["text"]
    unseen = [one for one in told["findings"] if one["check"] == "fleet.unreachable" and one["status"] == "UNKNOWN"]
    ending = f"on {first} the look's own job ended in '{key} error', and Slurm drained it"
    others = {node for one in unseen if ending in one["text"] for node in one["nodes"]}
    assert others == set(NODES) - {first}
    (resume,) = [line for one in told["findings"] for line in one["commands"] if "state=resume" in line]
    assert f"nodename={first} " in resume
    if answered:
        (hook,) = [one for one in told["findings"] if one["check"] == "scheduler.hooks"]
        assert path in hook["text"] and hook["text"].endswith("the end of this look's own job there drained the node")


@pytest.mark.parametrize("user", ["alice", None])
def test_suggested_commands_run_as_they_are_printed(lab: Cluster, user: str | None) -> None:
    """Of a running job, for its owner and for root, whom Slurm lets make no step in it. They look at the rank itself:
    a new step has other limits and another environment."""
    rank = "ulimit -n 600; export RANK=$SLURM_PROCID WORLD_SIZE=2 NCCL_SOCKET_IFNAM=eth0; exec sleep 300"
    job = lab.sbatch(f"#!/bin/sh\nsrun --ntasks-per-node=1 sh -c '{rank}'\n", "-N2", "-w", "n[1-2]")
    lab.wait_job(job, {"RUNNING"})
    words = ("doctor", "--job", job, "--only", "node.nofile,job.nccl-names", "--no-aws", "--json")

    def commands() -> list[str]:
        told = json.loads(lab.nccl_slurm(*words, user=user, check=False).stdout)
        return [line for one in told["findings"] for line in one["commands"] if line.startswith(("s", "sudo"))]

    def of_ranks() -> list[str]:
        return [line for line in commands() if " /proc/" in line and not line.startswith("ssh")]

    assert wait_until(lambda: len(of_ranks()) == 2, 60.0, every=1.0)
    steps = of_ranks()
    owner = re.compile(r"sudo (?:--preserve-env=SLURM_CONF )?-u alice (?=srun )")
    assert [bool(owner.match(line)) for line in steps] == [user is None] * 2
    said = [lab.run(["sh", "-c", owner.sub("", line)], user="alice").stdout for line in steps]
    assert sorted(" ".join(one.split()) for one in said) == ["Max open files 600 600 files", "NCCL_SOCKET_IFNAM=eth0"]
    (script,) = [line for line in commands() if "batch_script" in line]
    assert "NCCL_SOCKET_IFNAM=eth0" in lab.run(["sh", "-c", script], user=user).stdout


def test_a_job_of_somebody_else_is_not_looked_at(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsleep 300\n", "-w", "n1")
    lab.wait_job(job, {"RUNNING"})
    done = lab.nccl_slurm("doctor", "--job", job, *ONLY, user="bob", check=False)
    assert done.returncode == 3 and "not yours" in done.stderr


def test_idle_nodes_one_hangs_one_is_down_one_is_busy(lab: Cluster, trees: Path) -> None:
    busy = lab.sbatch("#!/bin/sh\nsleep 300\n", "-w", "n2", "--exclusive")
    lab.wait_job(busy, {"RUNNING"})
    lab.slurm("scontrol", "update", "nodename=n4", "state=down", "reason=test")
    with hanging(lab, "n3"):
        start = time.monotonic()
        told = doctor(lab, trees, "--nodes", "n[1-4]", "--limit", "5")
        took = time.monotonic() - start
    assert told["nodes"]["ways"] == {"job": ["n1"]}
    assert {one["node"] for one in told["nodes"]["silent"]} == {"n2", "n3", "n4"}
    assert ("FAIL", "P1", ("n3",)) in found(told, "fleet.unreachable")  # asked, and silent
    assert {("UNKNOWN", None, ("n2",)), ("UNKNOWN", None, ("n4",))} <= found(told, "fleet.unreachable")  # left alone
    assert ("FAIL", "P1", ("n4",)) in found(told, "scheduler.node-state")
    assert found(told, "scheduler.remove-ipc") >= {("WARN", "P1", ("n1",))}
    assert took < 90
    assert lab.job_states(busy) == ["RUNNING"]
    assert lab.slurm("squeue", "-h", "-n", "nccl-slurm-doctor", "-t", "running").stdout.count("n1") == 0


def test_all_idle_leaves_the_cluster_as_it_was(lab: Cluster, trees: Path) -> None:
    told = doctor(lab, trees, "--all-idle")
    assert told["nodes"]["ways"] == {"job": ["n1", "n2", "n3", "n4"]}
    assert found(told, "scheduler.node-state") == {("PASS", None, ())}
    lab.wait_idle(60.0)


def test_compare_tells_that_a_remedy_helped(lab: Cluster, trees: Path) -> None:
    before = lab.scratch / "before.json"
    before.write_text(json.dumps(doctor(lab, trees, "--nodes", FAULTY)))
    conf = trees / FAULTY / "etc/systemd/logind.conf"
    fault = conf.read_text()
    conf.write_text("[Login]\nRemoveIPC=no\n")
    told = doctor(lab, trees, "--nodes", FAULTY, "--compare", str(before))
    conf.write_text(fault)
    (change,) = [one for one in told["changes"] if one["check"] == "scheduler.remove-ipc"]
    assert (change["kind"], change["nodes"]) == ("gone", [FAULTY])


@contextmanager
def by_ssh(lab: Cluster, forced: str = "") -> Iterator[None]:
    """n1 and n2 answer, n3 takes a connection and says nothing, n4 refuses."""
    before = lab.daemon_config.read_text()
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-ssh-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        sshd = Sshd(folder / "sshd", [NODES["n1"], NODES["n2"]], keys(folder / "key"), forced)
        (folder / "known_hosts").write_text(sshd.known(*NODES))
        lab.write_daemon_config(
            f'{before}\n[ssh]\nuser = "root"\nkey_file = "{folder}/key"\nknown_hosts = "{folder}/known_hosts"\n'
            f"port = {sshd.port}\nconnect_s = 8\nvisit_s = 60\n"
        )
        with socket.create_server((NODES["n3"], sshd.port)), running(sshd):
            yield
    lab.write_daemon_config(before)


ssh = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


@ssh
def test_by_ssh(lab: Cluster, trees: Path) -> None:
    pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
    with by_ssh(lab):
        told = doctor(lab, trees, "--nodes", "n[1-4]", "--ssh")
    assert told["nodes"]["ways"] == {"ssh": ["n1", "n2"]}
    whys = {one["node"]: one["why"] for one in told["nodes"]["silent"]}
    assert set(whys) == {"n3", "n4"} and "refused" in whys["n4"]
    assert found(told, "scheduler.remove-ipc") >= {("WARN", "P1", ("n1",)), ("PASS", None, ("n2",))}
    assert {one[:2] for one in found(told, "fleet.unreachable")} == {("FAIL", "P1")}


@ssh
def test_by_ssh_with_a_key_that_is_bound_to_the_installed_program(lab: Cluster, trees: Path) -> None:
    pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
    program = f"{lab.scratch}/prefix/slurm/nccl-slurm-node --conf {lab.capture_conf} serve"
    with by_ssh(lab, program):
        told = doctor(lab, trees, "--nodes", "n[1-2]", "--ssh")
    assert told["nodes"]["ways"] == {"ssh": ["n1", "n2"]}
