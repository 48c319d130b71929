"""Suggested commands work as they are printed: for who reads, where they stand, of what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nccl_slurm.doctor import guide
from nccl_slurm.doctor.check import Finding, Proof
from nccl_slurm.doctor.checks.job.limits import CHECKS as JOB_LIMITS
from nccl_slurm.doctor.checks.node.limits import CHECKS as NODE_LIMITS
from nccl_slurm.doctor.checks.node.look import Look
from nccl_slurm.doctor.fold import folded
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.doctor.reader import Reader
from nccl_slurm.doctor.result import Looked, Result
from nccl_slurm.scheduler.client import LiveJob
from tests.doctor.jobs import job, limits, rank, said

STEP = "srun --jobid={job} --overlap --nodelist={node} --nodes=1 --ntasks=1 grep files /proc/{pid}/limits"
PIPED = "srun --jobid={job} --overlap --nodelist={host} --ntasks=1 cat /proc/{pid}/environ | tr '\\0' '\\n'"
PEER = "srun --jobid={job} --overlap --nodelist={peer} --nodes=1 --ntasks=1 nc -zv {node} {port}"
KNOWN = {"job": "10", "owner": "54321", "node": "n2", "host": "n2", "pid": "77", "peer": "n3", "port": "29500"}
RUN = "srun --jobid=10 --overlap --nodelist=n2 --nodes=1 --ntasks=1 grep files /proc/77/limits"


def lines(command: str, reader: Reader, values: Mapping[str, str]) -> list[str]:
    return list(guide._for(reader, [command], values))


@pytest.mark.parametrize(
    ("command", "reader", "change", "expected"),
    [
        (STEP, Reader(54321), {}, [RUN]),
        (STEP, Reader(0), {}, [f"sudo -u '#54321' {RUN}"]),
        (STEP, Reader(1000), {"owner": "0"}, [f"sudo -u root {RUN}"]),
        (STEP, Reader(0, conf=True), {}, [f"sudo --preserve-env=SLURM_CONF -u '#54321' {RUN}"]),
        (STEP, Reader(0), {"job": "8_3", "raw_job": "10"}, [f"sudo -u '#54321' {RUN}"]),
        (STEP, Reader(0), {"owner": ""}, []),  # it does not run, or nobody knows
        (STEP, Reader(0), {"pid": ""}, []),
        (STEP, Reader(0), {"job": ""}, []),
        (STEP, Reader(0, local=True, named=False), {"owner": ""}, ["grep files /proc/77/limits"]),
        (PIPED, Reader(0, local=True), {}, ["cat /proc/77/environ | tr '\\0' '\\n'"]),
        (PEER, Reader(54321), {}, ["srun --jobid=10 --overlap --nodelist=n3 --nodes=1 --ntasks=1 nc -zv n2 29500"]),
        (PEER, Reader(54321), {"peer": ""}, []),
        ("ssh {node} df -h /dev/shm", Reader(0), {}, ["ssh n2 df -h /dev/shm"]),
        ("ssh {node} df -h /dev/shm", Reader(0), {"node": ""}, []),
        ("ssh {node} df -h /dev/shm", Reader(0, local=True, named=False), {}, ["df -h /dev/shm"]),
        ("ssh -o ConnectTimeout=10 {node} uptime", Reader(0, local=True), {}, ["uptime"]),
        ("ssh {node} 'cat /sys/x/*/state'", Reader(0, local=True), {}, ["cat /sys/x/*/state"]),
        ("munge -n | ssh {node} unmunge", Reader(0, local=True), {}, ["munge -n | unmunge"]),
        ("ssh {node} ls -l {path}", Reader(0), {"path": "/x y"}, ["ssh n2 ls -l PATH"]),
        ("ssh {node} ls -l {path}", Reader(0, local=True), {"path": "/x y"}, ["ls -l '/x y'"]),
        ("scontrol show node {node}", Reader(0, local=True, named=False), {}, ["scontrol show node NODE"]),
        ("scontrol show node {node}", Reader(0, local=True), {}, ["scontrol show node n2"]),
        ("nccl-slurm explain {reason}", Reader(0), {"reason": "a b"}, ["nccl-slurm explain 'a b'"]),
        ("nccl-slurm explain {reason}", Reader(0), {}, []),
    ],
)
def test_a_command_is_printed_as_it_works(
    command: str, reader: Reader, change: Mapping[str, str], expected: list[str]
) -> None:
    values = {key: value for key, value in {**KNOWN, **change}.items() if value}
    assert lines(command, reader, values) == expected


def commands(finding: Finding, **looked: Any) -> Sequence[str]:
    return Result(0.0, 1.0, [finding], {}, job=finding.values.get("job"), looked=Looked(**looked)).commands(finding)


@pytest.mark.parametrize(
    ("state", "batch", "steps", "scripts"), [("RUNNING", True, 1, 1), ("RUNNING", False, 1, 0), (None, False, 0, 0)]
)
def test_steps_are_for_jobs_that_run(state: str | None, batch: bool, steps: int, scripts: int) -> None:
    live = LiveJob(42, "8_3", "train", state, uid=54321, batch=batch) if state else None
    (check,) = JOB_LIMITS
    seen = job({"n1": [rank(0, 1, text=limits(hard="600"))]}, adapters={})
    (found,) = said(check, type(seen)("8_3", 42, seen.fleet, live))
    told = commands(found)
    assert [line for line in told if "srun" in line] == [
        "sudo -u '#54321' srun --jobid=42 --overlap --nodelist=n1 --nodes=1 --ntasks=1 grep 'Max open files' "
        "/proc/1000/limits"
    ] * steps
    names = Finding("job.nccl-names", "WARN", "x", "P2", nodes=["n1"], values=found.values)
    assert len([line for line in commands(names) if line.startswith("scontrol write batch_script 42 - |")]) == scripts


def node(name: str, pid: int, way: str = "ssh", **row: Any) -> Observation:
    """With one rank whose limits are low, and whose own /dev/shm is small."""
    shm = {"size": 64 << 20, "free": 32 << 20}
    told = {"pid": pid, "job": "42", "uid": 54321, "limits": limits(hard="600", stack="1024"), "shm": shm, **row}
    return Observation(name, {"ranks": {"value": {"ranks": [told], "more": 0, "unreadable": 0}}}, way=way, job="42")


@pytest.mark.parametrize(
    ("check", "looked_at"),
    [
        ("node.nofile", "grep files /proc/77/limits"),
        ("node.stack", "grep stack /proc/77/limits"),
        ("node.shm", "df -h /proc/77/root/dev/shm"),
    ],
)
def test_the_process_that_was_looked_at_is_looked_at(check: str, looked_at: str) -> None:
    """Not a new step, which has the limits of the shell that makes it, and the node's own /dev/shm. Of several nodes
    that of the first proof."""
    (one,) = [one for one in NODE_LIMITS if one.id == check]
    seen = [node("n3", 77), node("n1", 78)]
    found = [finding for each in seen for finding in one.ask(Look(check, each))]
    (told,) = folded(found, {}, [check])
    printed = commands(told)
    assert f"sudo -u '#54321' srun --jobid=42 --overlap --nodelist=n3 --nodes=1 --ntasks=1 {looked_at}" in printed
    assert all("/proc/self" not in line and "PID" not in line for line in printed)


def test_of_slurmd_there_is_no_step() -> None:
    finding = Finding("node.nofile", "FAIL", "x", "P1", ["n1"], proofs=[Proof("/proc/5/limits", "x")])
    assert "ssh n1 sudo grep files /proc/5/limits" in commands(finding)
    assert not [line for line in commands(finding) if "srun" in line]


def test_of_one_line_with_and_without_sudo_one_is_enough() -> None:
    """What was read here as this user can be read again."""
    finding = Finding("node.nofile", "FAIL", "x", "P1", ["vm"], proofs=[Proof("/proc/5/limits", "x")])
    told = commands(finding, chosen=["vm"], ways={"local": ["vm"]})
    assert [line for line in told if "/proc/" in line] == ["grep files /proc/5/limits"]


def test_a_host_that_slurm_may_not_know_is_not_named_to_it() -> None:
    finding = Finding("node.gpu-count", "FAIL", "x", "P0", ["vm"])
    told = commands(finding, chosen=["vm"], ways={"local": ["vm"]})
    assert "nvidia-smi -L" in told and not [line for line in told if "ssh" in line or "vm" in line]
