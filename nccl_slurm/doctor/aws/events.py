"""What the service did or met in the window, by its own events. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.aws.client import Refused
from nccl_slurm.doctor.aws.cluster import Event
from nccl_slurm.doctor.aws.findings import NONE, NOT
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import Word, is_denied, load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, told_of, unread
from nccl_slurm.doctor.check import Finding, Proof

__all__ = ["EVENTS"]

_ID = "aws.events"
_PROOFS_MAX = 10
_DID_NOT = re.compile(
    r"\b(?:did|could|can|do)(?: not|n't) (?:be )?(?:run|start|complete|finish|succeed|pass)"
    r"|\bunsuccessful|\bnot successful",
    re.IGNORECASE,
)
_FAILED = re.compile(
    rf"{NOT}\b(?:time[ds]?[ -]?out|fail(?:s|ed|ing|ures?)?|errors?)\b{NONE}",
    re.IGNORECASE,
)
_KEPT_ONLY = "only clusters with NodeProvisioningMode Continuous have events"
#: An event of level Error that no row knows is still one.
_UNKNOWN = {
    "error": Word("error", "WARN", "P1", "an error that this version does not know", ""),
    "warn": Word("warn", "WARN", "P2", "a warning that this version does not know", ""),
}


def _events(aws: Aws) -> Iterator[Finding]:
    try:
        listed = aws.events()
    except Refused as error:
        if error.code != "ValidationException" or aws.cluster().provisioning == "Continuous":
            raise
        yield Finding(_ID, "NOT-APPLICABLE", f"{_KEPT_ONLY}; the service says: {error}")
        return
    inside = [event for event in listed.items if event.time is None or aws.since <= event.time <= aws.until]
    found: dict[tuple[str, str, str | None], tuple[Word, list[Event]]] = {}
    for event in inside:
        row = _row(event)
        if row is not None:
            found.setdefault((row.id, row.status, event.instance), (row, []))[1].append(event)
    for row, events in found.values():
        yield _finding(aws, row, events)
    yield from unread(_ID, "the list of events", listed.cut)
    if not found and not listed.cut:
        text = f"{len(inside)} events from {rfc3339(aws.since)} to {rfc3339(aws.until)}, none of them of a fault"
        yield Finding(_ID, "PASS", text)


def _row(event: Event) -> Word | None:
    """None: it speaks of no fault. What names its subject alone (*EFA health checks*, *lifecycle scripts*) is a fault
    where it says so, or is of level Error; what the service calls Info is a note at most."""
    level = (event.level or "").lower()
    row = load().of_event(event.text)
    if row is None or (row.subject and level != "error" and not _tells_of_failure(event.text)):
        return _UNKNOWN.get(level)
    return replace(row, status="WARN", priority="P2") if level == "info" else row


def _tells_of_failure(text: str) -> bool:
    words = _FAILED.finditer(text)
    return _DID_NOT.search(text) is not None or any(not is_denied(text[: one.start()]) for one in words)


def _finding(aws: Aws, row: Word, events: Sequence[Event]) -> Finding:
    """Of one kind, and of one instance or of none."""
    first = events[0]
    told = told_of(aws, _ID, row, row.means, first.instance, lasting=not row.machine)
    times = [event.time for event in events if event.time is not None]
    groups = list(dict.fromkeys(event.group for event in events if event.group))
    values = {**told.values, "event": row.id, "group": ", ".join(groups[:5])}
    proofs = tuple(_proof(aws, event) for event in events[:_PROOFS_MAX])
    return replace(told, since=min(times, default=None), proofs=proofs, values=values)


def _proof(aws: Aws, event: Event) -> Proof:
    where = event.instance or event.group or "the cluster"
    line = f"{rfc3339(event.time) or 'no time'} {where} {event.level or ''}: {event.text}".replace(" :", ":")
    return call(aws, "sagemaker", "list-cluster-events", line)


EVENTS = AwsCheck(_ID, "events of the service inside the window", _events)
