"""Settings of slurm.conf, cgroup.conf and logind that cost jobs their shared memory, their locked memory, or nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.own import wired
from nccl_slurm.doctor.checks.scheduler.shape import SlurmCheck, seconds_of, threshold
from nccl_slurm.doctor.observation import Observation

__all__ = ["CHECKS"]

IPC, LIMITS, CGROUP, UNKILLABLE, COMMENT, DAEMON = (
    f"scheduler.{name}"
    for name in ("remove-ipc", "limits", "cgroup-memory", "unkillable-timeout", "accounting-comment", "own-daemon")
)
_REMOVE_IPC = re.compile(r"^(#?)\s*RemoveIPC\s*=\s*(\w+)", re.MULTILINE)
_MEMLOCK = re.compile(r"^Max locked memory +(\S+) +(\S+)", re.MULTILINE)
_TRUE = ("yes", "true", "1", "on")


def _ipc(seen: SlurmObserved) -> Iterator[Finding]:
    """With RemoveIPC the end of a user's last login takes /dev/shm files of his running job with it."""
    if not seen.fleet.nodes:
        raise NotObserved(seen.unseen("settings of logind"))
    for name, node in seen.fleet.nodes.items():
        yield _ipc_of(name, node)


def _ipc_of(name: str, node: Observation) -> Finding:
    """What the vendor left as a comment is the built-in value; drop-ins win over the file, the last one over all."""
    if (init := _without_logind(node)) is not None:
        text = f"PID 1 is {init} and no logind runs, so nobody removes shared memory at a user's logout"
        return Finding(IPC, "NOT-APPLICABLE", text, nodes=(name,))
    try:
        files = node.files("logind")
    except NotObserved as error:
        return Finding(IPC, "UNKNOWN", str(error), nodes=(name,))
    told = [(path, found) for path in sorted(files, key=_order) for found in _REMOVE_IPC.finditer(files[path])]
    given = [(path, found) for path, found in told if not found.group(1)]
    if not told:
        return Finding(IPC, "UNKNOWN", "logind.conf does not tell what RemoveIPC is built in as", nodes=(name,))
    path, found = (given or told)[-1]
    if found.group(2).lower() not in _TRUE:
        return Finding(IPC, "PASS", "logind leaves shared memory of users alone (RemoveIPC=no)", nodes=(name,))
    text = "RemoveIPC is on: when a user's last login on the node ends, shared memory of his running job is removed"
    proof = Proof(path, found.group().strip() if given else f"{found.group().strip()} (a comment: the built-in value)")
    return Finding(IPC, "WARN", text, "P1" if given else "P2", (name,), proofs=[proof])


def _without_logind(node: Observation) -> str | None:
    """The name of PID 1 where neither it is systemd nor a logind is there; None where it may be."""
    try:
        init, logind = node.text("init").strip(), node.reader("logind-runs")
    except NotObserved:
        return None
    return init if init and init != "systemd" and logind == [] else None


def _order(path: str) -> tuple[bool, str]:
    return ".d/" in path, path.rpartition("/")[2]


def _limits(seen: SlurmObserved) -> Iterator[Finding]:
    """Jobs get slurmd's limits, not those of a shell on the node; and the submitting shell's where it propagates."""
    propagated = _propagated(seen)
    if propagated:
        text = "PropagateResourceLimits hands the submitting shell's locked-memory limit to tasks: a low one there wins"
        yield Finding(LIMITS, "WARN", text, "P2", proofs=[Proof("scontrol show config", propagated)])
    found = [one for name, node in seen.fleet.nodes.items() for one in _limits_of(name, node)]
    yield from found
    if not found:
        yield Finding(LIMITS, "UNKNOWN", seen.unseen("slurmd's limits"))


def _propagated(seen: SlurmObserved) -> str | None:
    """ALL is the default, and printed; of the two keys one has a value."""
    given = seen.setting("PropagateResourceLimits").upper().split(",")
    excepted = seen.setting("PropagateResourceLimitsExcept").upper().split(",")
    if "MEMLOCK" in excepted or "NONE" in given or excepted != [""]:
        return None
    if "ALL" in given or "MEMLOCK" in given:
        return f"PropagateResourceLimits = {','.join(given)}"
    return None


def _limits_of(name: str, node: Observation) -> Iterator[Finding]:
    try:
        rows = [row for row in node.reader("daemons") if isinstance(row, dict) and row.get("comm") == "slurmd"]
    except (NotObserved, TypeError) as error:
        yield Finding(LIMITS, "UNKNOWN", str(error), nodes=(name,))
        return
    found = _MEMLOCK.search(str(rows[0].get("limits"))) if rows else None
    if found is None:
        yield Finding(LIMITS, "UNKNOWN", "no slurmd whose limits can be read", nodes=(name,))
        return
    if not _has_rdma(node):
        yield Finding(LIMITS, "NOT-APPLICABLE", "no RDMA card is here for which memory is locked", nodes=(name,))
        return
    line = f"Max locked memory {found.group(1)} (soft) {found.group(2)} (hard)"
    if found.group(1).isdigit() and int(found.group(1)) < threshold("memlock-bytes"):
        text = "slurmd may lock little memory, and so may every job: LimitMEMLOCK=infinity belongs into its unit"
        proof = Proof("/proc/PID/limits of slurmd", line)
        yield Finding(LIMITS, "FAIL", text, "P1", (name,), proofs=[proof], values={"limit": found.group(1)})
    else:
        yield Finding(LIMITS, "PASS", "slurmd may lock as much memory as RDMA needs", nodes=(name,))


def _has_rdma(node: Observation) -> bool:
    """Where that can't be seen the limit is judged: a low one is found on any node that trains."""
    try:
        devices = node.present("rdma-devices")
    except NotObserved:
        return True
    return bool(devices.unread) or any(text.strip() for text in devices.values())


def _cgroup(seen: SlurmObserved) -> Iterator[Finding]:
    found = []
    track, task = seen.setting("ProctrackType"), seen.setting("TaskPlugin")
    if not track.endswith("/cgroup"):
        found.append(("processes that leave their parent stay behind after a job", f"ProctrackType = {track}"))
    if "cgroup" not in task:
        found.append(("jobs are confined to neither their GPUs nor their memory", f"TaskPlugin = {task or '(null)'}"))
    elif (ram := seen.setting("ConstrainRAMSpace")) and ram.lower() not in _TRUE:
        found.append(("one job may take all memory of a node from the others", f"ConstrainRAMSpace = {ram}"))
    for text, line in found:
        yield Finding(CGROUP, "WARN", text, "P2", proofs=[Proof("scontrol show config", line)])
    if not found and not seen.setting("ConstrainRAMSpace"):
        raise NotObserved("scontrol show config: tells no ConstrainRAMSpace (cgroup.conf)")
    if not found:
        yield Finding(CGROUP, "PASS", "processes and memory of jobs are held by cgroups")


def _unkillable(seen: SlurmObserved) -> Iterator[Finding]:
    said = seen.setting("UnkillableStepTimeout")
    limit = seconds_of(said)
    if limit is None:
        raise NotObserved(f"scontrol show config: UnkillableStepTimeout is {said or 'not told'}")
    if limit < threshold("unkillable-s"):
        text = f"a process that needs more than {limit:g} s to die (GPU driver, core dump, NFS) drains its node"
        proof = Proof("scontrol show config", f"UnkillableStepTimeout = {said}")
        yield Finding(UNKILLABLE, "WARN", text, "P2", proofs=[proof], values={"seconds": f"{limit:g}"})
    else:
        yield Finding(UNKILLABLE, "PASS", f"processes have {limit:g} s to die")


def _comment(seen: SlurmObserved) -> Iterator[Finding]:
    if not seen.setting("AccountingStorageType").endswith("/slurmdbd"):
        yield Finding(COMMENT, "NOT-APPLICABLE", "this cluster keeps no accounting in slurmdbd")
        return
    found = list(_not_accounted(seen))
    for text, key in found:
        proof = Proof("scontrol show config", f"{key} = {seen.setting(key) or '(null)'}")
        yield Finding(COMMENT, "WARN", text, "P2", proofs=[proof])
    if not found:
        what = "comments and GPUs" if "gpu" in seen.config.gres_types else "comments"
        yield Finding(COMMENT, "PASS", f"{what} of jobs are kept in accounting")


def _not_accounted(seen: SlurmObserved) -> Iterator[tuple[str, str]]:
    """What is said, and the key."""
    if "job_comment" not in seen.setting("AccountingStoreFlags").lower():
        yield (
            "AccountingStoreFlags lacks job_comment: comments of running jobs are lost at their end",
            "AccountingStoreFlags",
        )
    if "gpu" in seen.config.gres_types and not any(one.startswith("gres/gpu") for one in seen.config.tres):
        yield (
            "AccountingStorageTRES lacks gres/gpu: how many GPUs a job had is not known to accounting",
            "AccountingStorageTRES",
        )


def _daemon(seen: SlurmObserved) -> Iterator[Finding]:
    if not any(wired(seen).values()):
        yield Finding(DAEMON, "NOT-APPLICABLE", "slurm.conf names no program of nccl-slurm")
        return
    told: Any = json.loads(seen.said("own-daemon"))
    beat = float(told["heartbeat"]) if told["heartbeat"] else None
    proof = Proof("nccl-slurm status", f"last sign of life: {rfc3339(beat) or 'none'}")
    if told["stopped"] or beat is None or seen.now - beat > threshold("heartbeat-s"):
        why = "was stopped" if told["stopped"] else "gives no sign of life"
        yield Finding(DAEMON, "WARN", f"nccl-slurm's daemon {why}: no job is diagnosed", "P2", (), beat, [proof])
        return
    if count := told["comments_given_up"]:
        text = f"nccl-slurm's daemon runs; {count} comments could not be written (nccl-slurm status)"
        yield Finding(DAEMON, "WARN", text, "P2")
    else:
        yield Finding(DAEMON, "PASS", "nccl-slurm's daemon runs")


CHECKS = (
    SlurmCheck(IPC, "logind leaves users' shared memory alone", _ipc, sources=("logind", "logind-runs", "init")),
    SlurmCheck(LIMITS, "Locked memory of slurmd and what is propagated", _limits, sources=("daemons", "rdma-devices")),
    SlurmCheck(CGROUP, "Jobs are held by cgroups", _cgroup),
    SlurmCheck(UNKILLABLE, "Time for processes to die before their node is drained", _unkillable),
    SlurmCheck(COMMENT, "Comments and GPUs of jobs are kept in accounting", _comment),
    SlurmCheck(DAEMON, "nccl-slurm's own daemon", _daemon),
)
