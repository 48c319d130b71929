"""One machine's past as data: what the store gives to recommendation and statistics, which ask no store, no clock.

A machine is told by its identity (HyperPod instance id, DMI uuid, else node name and generation; never the boot id) and
shown by its node name. A machine that took over a name starts with no events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EVENT_KINDS", "Machine", "MachineEvent"]

#: fault     one hardware or system fault of trust ``root``; ``name`` is the id of the pattern row or GPU reading
#:           (``kernel.xid``, ``kernel.machine-check``, ``gpu.remap-pending``); data: gpu, xid, sxid, device, link,
#:           action, uuid; of a burst count and last (its end); of ``gpu.count`` found, configured
#: boot      the boot id changed; ``name``: asked (by Slurm or HyperPod, data: by, reason) or unasked
#: state     an edge of Slurm's node state; ``name`` is the state, data: reason, by, id (row of data/reasons.toml),
#:           class, owner, hardware (True | False | None)
#: job       a run that had this machine ended; ``name``: well | failed; data: job, run, nodes (how many the run had),
#:           named (True where a verdict proved this node), class (of ``well`` where somebody ended it: preempt-cancel).
#:           Old runs that went well are counted: count runs of nodes nodes each, without job and run; ``time`` is the
#:           middle of their day or month, ``uncertainty_s`` half of it
#: gpu       by readings of the GPUs: ``changed``, another board is in the place ``gpu`` (data: gpu, uuid, before), or
#:           ``over``, a state is no longer shown that was (data: gpu, uuid, was: name of the fault)
#: replaced  the name went to another machine (``gone``, this one's last event) or came from one (``came``, its first);
#:           data: other
#: action    a person accepted, declined or snoozed a recommendation; ``name`` is that, data: action, rule, by, note
#: excluded  a job does not want this node (``--exclude``); ``name`` is its raw id, told again by each daemon
EVENT_KINDS = ("fault", "boot", "state", "job", "gpu", "replaced", "action", "excluded")


@dataclass(frozen=True)
class MachineEvent:
    """One thing that happened once. ``time``: seconds since 1970 UTC, give or take ``uncertainty_s``.

    ``source``: poll | slurmdbd | kernel | gpu | record | daemon | review | hyperpod. ``failure_class`` is the class of
    the taxonomy that a fault points at, None where it points at none.
    """

    time: float
    kind: str
    name: str
    source: str
    text: str = ""
    failure_class: str | None = None
    uncertainty_s: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """``events`` oldest first. ``role``: compute | login | database | controller | unknown; unknown counts as
    controller. ``since``: when this machine was seen first under this name; what was before is not observed.
    """

    identity: str
    node: str
    role: str = "unknown"
    since: float | None = None
    events: Sequence[MachineEvent] = ()

    def of_kind(self, kind: str, since: float = float("-inf")) -> Iterator[MachineEvent]:
        return (event for event in self.events if event.kind == kind and event.time >= since)
