"""Jobs that are stuck, by age and reason: COMPLETING, CONFIGURING, PENDING beside idle nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.shape import SlurmCheck, threshold
from nccl_slurm.doctor.choose import is_idle
from nccl_slurm.scheduler.text import hosts_of, number_of, time_of

__all__ = ["CHECKS", "QUEUE_FORMAT"]

STUCK = "scheduler.stuck-jobs"
#: For squeue -o: nothing in it is a user's text. Id, state, reason, submit, start, end, nodes asked, partition, nodes.
QUEUE_FORMAT = "%i|%T|%r|%V|%S|%e|%D|%P|%N"
_MOST = 20
_STATE = re.compile(r"[A-Z_]{2,40}")
#: Reasons that go away by no waiting (slurm.h job_state_reason, and the texts that slurmctld writes in their place for
#: a job that it holds), and what they mean.
_NEVER: Mapping[str, str] = {
    "BadConstraints": "no node can ever fit what it asks for",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "it asks for more than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "DependencyNeverSatisfied": "what it depends on failed",
    "InvalidAccount": "its account is invalid",
    "InvalidQOS": "its QOS is invalid",
    "NodeDown": "a node that it needs is down",
    "JobLaunchFailure": "it could not be launched and is held",
    "launch failed requeued held": "it could not be launched, as after a failed prolog, and is held",
    "job requeued in held state": "it was requeued to be held",
    "JobHeldAdmin": "an administrator holds it",
}


@dataclass(frozen=True)
class _Row:
    id: str
    state: str
    reason: str
    submit: float | None
    start: float | None
    end: float | None
    count: int | None
    partition: str
    nodes: tuple[str, ...]
    line: str


def _rows(text: str) -> Iterator[_Row]:
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 9:
            yield _Row(
                id=parts[0],
                state=parts[1],
                reason=parts[2],
                submit=time_of(parts[3]),
                start=time_of(parts[4]),
                end=time_of(parts[5]),
                count=number_of(parts[6].split("-")[0]),
                partition=parts[7].rstrip("*"),
                nodes=hosts_of(parts[8]),
                line=line,
            )


def _stuck(seen: SlurmObserved) -> Iterator[Finding]:
    said = seen.said("queue")
    rows = list(_rows(said))
    strange = [line for line in said.splitlines() if line.strip() and line.count("|") != QUEUE_FORMAT.count("|")]
    found = [*_completing(seen, rows), *_configuring(seen, rows), *_pending(seen, rows)]
    yield from found[:_MOST]
    if len(found) > _MOST:
        yield Finding(STUCK, "WARN", f"{len(found) - _MOST} more jobs are stuck", "P2")
    strange += [row.line for row in rows if not _STATE.fullmatch(row.state)]
    if strange:
        proof = Proof(f"squeue -o '{QUEUE_FORMAT}'", strange[0])
        yield Finding(STUCK, "UNKNOWN", f"{len(strange)} lines of squeue have an unknown form", proofs=[proof])
    elif not found:
        yield Finding(STUCK, "PASS", f"none of {len(rows)} jobs is stuck")


def _completing(seen: SlurmObserved, rows: Sequence[_Row]) -> Iterator[Finding]:
    """The nodes that still do, of those the job had: an epilog or a process that does not end."""
    busy = {node.name for node in seen.nodes if "COMPLETING" in node.flags or node.state == "COMPLETING"}
    for row in rows:
        if row.state == "COMPLETING" and row.end is not None and seen.now - row.end > threshold("completing-s"):
            nodes = tuple(node for node in row.nodes if node in busy) or row.nodes
            text = f"job {row.id} is COMPLETING for {_age(seen.now - row.end)}: an epilog or a process does not end"
            yield Finding(STUCK, "FAIL", text, "P1", nodes, row.end, [_proof(row)], {"job": row.id})


def _configuring(seen: SlurmObserved, rows: Sequence[_Row]) -> Iterator[Finding]:
    for row in rows:
        if row.state == "CONFIGURING" and row.start is not None and seen.now - row.start > threshold("configuring-s"):
            why = "a node does not come up, or a prolog hangs"
            text = f"job {row.id} is CONFIGURING for {_age(seen.now - row.start)}: {why}"
            yield Finding(STUCK, "FAIL", text, "P1", row.nodes, row.start, [_proof(row)], {"job": row.id})


def _pending(seen: SlurmObserved, rows: Sequence[_Row]) -> Iterator[Finding]:
    """A job that waits is no fault; one that no waiting helps, or for which there seems to be room, is worth a look."""
    idle = _idle(seen)
    for row in rows:
        if row.state != "PENDING":
            continue
        if why := _BY_WORD.get(_word(row.reason)):
            text = f"job {row.id} will not start by itself: {why} ({row.reason})"
            yield Finding(STUCK, "WARN", text, "P2", (), row.submit, [_proof(row)], {"job": row.id})
        elif row.reason == "Resources" and _has_room(row, idle) and _waits_long(row, seen.now):
            yield _beside_idle(row, idle)


def _beside_idle(row: _Row, idle: Mapping[str, int]) -> Finding:
    """What else it asks for is not told by squeue in words of Slurm's own."""
    free = max(idle.get(one, 0) for one in row.partition.split(","))
    text = (
        f"job {row.id} waits for Resources, asks for {row.count} nodes, and {free} of its partition are idle: {_ELSE}"
    )
    text += f"; Slurm plans its start for {rfc3339(row.start)}" if row.start else ""
    return Finding(STUCK, "WARN", text, "P2", (), row.submit, [_proof(row)], {"job": row.id})


_ELSE = "these may not be what it asks for (GPUs, memory, features, nodes by name, of one switch or one block)"


def _word(reason: str) -> str:
    """squeue writes the texts with blanks or underscores."""
    return re.sub(r"[ _]", "", reason).lower()


_BY_WORD = {_word(reason): why for reason, why in _NEVER.items()}


def _waits_long(row: _Row, now: float) -> bool:
    """One whose start is near by Slurm's own plan waits for the next turn of the scheduler."""
    limit = threshold("pending-s")
    is_next = row.start is not None and abs(row.start - now) <= limit
    return row.submit is not None and now - row.submit > limit and not is_next


def _has_room(row: _Row, idle: Mapping[str, int]) -> bool:
    return row.count is not None and any(idle.get(one, 0) >= row.count for one in row.partition.split(","))


def _idle(seen: SlurmObserved) -> Mapping[str, int]:
    """Partition → idle nodes; none are known where the nodes could not be read."""
    found: dict[str, int] = {}
    try:
        nodes, fields = seen.nodes, seen.fields
    except NotObserved:
        return {}
    for node in nodes:
        for partition in fields.get(node.name, {}).get("Partitions", "").split(",") if is_idle(node) else ():
            found[partition] = found.get(partition, 0) + 1
    return found


def _proof(row: _Row) -> Proof:
    return Proof(f"squeue -o '{QUEUE_FORMAT}'", row.line)


def _age(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


CHECKS = (SlurmCheck(STUCK, "Jobs that are stuck, by age and reason", _stuck),)
