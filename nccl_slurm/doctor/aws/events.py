"""What the service did or met in the window, by its own events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.aws.client import Refused
from nccl_slurm.doctor.aws.cluster import Event
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import Word, load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, unread
from nccl_slurm.doctor.check import Finding, Proof

__all__ = ["EVENTS"]

_ID = "aws.events"
_PROOFS_MAX = 10
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
    found: dict[tuple[str, str | None], tuple[Word, list[Event]]] = {}
    for event in inside:
        row = load().of_event(event.text) or _UNKNOWN.get((event.level or "").lower())
        if row is not None:
            found.setdefault((row.id, event.instance), (row, []))[1].append(event)
    for row, events in found.values():
        yield _finding(aws, row, events)
    yield from unread(_ID, "the list of events", listed.cut)
    if not found and not listed.cut:
        text = f"{len(inside)} events from {rfc3339(aws.since)} to {rfc3339(aws.until)}, none of them of a fault"
        yield Finding(_ID, "PASS", text)


def _finding(aws: Aws, row: Word, events: Sequence[Event]) -> Finding:
    """Of one kind, and of one instance or of none."""
    first = events[0]
    times = [event.time for event in events if event.time is not None]
    groups = list(dict.fromkeys(event.group for event in events if event.group))
    values = {"event": row.id, "group": ", ".join(groups[:5]), "instance_id": first.instance or ""}
    return Finding(
        _ID,
        row.status,
        row.means,
        row.priority,
        nodes=(aws.node(first.instance),) if first.instance else (),
        since=min(times, default=None),
        proofs=tuple(_proof(aws, event) for event in events[:_PROOFS_MAX]),
        values=values,
    )


def _proof(aws: Aws, event: Event) -> Proof:
    where = event.instance or event.group or "the cluster"
    line = f"{rfc3339(event.time) or 'no time'} {where} {event.level or ''}: {event.text}".replace(" :", ":")
    return call(aws, "sagemaker", "list-cluster-events", line)


EVENTS = AwsCheck(_ID, "events of the service inside the window", _events)
