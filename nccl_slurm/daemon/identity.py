"""Which machine a node record speaks of: the same as before, one that was there unknown, or another one. Pure.

A wrong answer gives a machine the faults of another one, or frees a bad one from its own. So a machine gets no event
of a time in which it was not certainly this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nccl_slurm.history.generations import BY_NAME
from nccl_slurm.history.rows import MachineRow

__all__ = ["Holder", "Sighting", "Step", "decide", "sighting_of"]

#: Slurm and the node tell the time of one boot a second or two apart; clocks are set while a machine starts.
WOBBLE_S = 5.0
#: A machine that has been up since before its name was polled first was there all the time, but for this.
FIRST_POLL_S = 60.0


@dataclass(frozen=True)
class Sighting:
    """What a node record tells of the machine. ``identity`` None: only the node name was there to tell it by.

    ``at`` is when the record was written, ``began`` when the run's prolog ran, both by the node's clock.
    """

    node: str
    identity: str | None
    source: str
    at: float
    began: float | None = None
    boot_id: str | None = None
    boot_time: float | None = None

    @property
    def since(self) -> float:
        """From when on it certainly was this machine: a machine keeps its name while it is up."""
        known = [at for at in (self.boot_time, self.began) if at is not None]
        return min(known, default=self.at)


class Holder(NamedTuple):
    """The machine that is stored under the sighting's identity. ``node``: the name that it has now, None for none;
    ``live``: Slurm hears from that node."""

    machine: MachineRow
    node: str | None
    live: bool


class Step(NamedTuple):
    """``what``: same (nothing is learned) | identify (the machine of this name has this identity) | hand-over (at
    ``at``) | shared (two live nodes claim it, so it tells nothing)."""

    what: str
    at: float = 0.0
    replaced: bool = False


def sighting_of(record: Mapping[str, Any]) -> Sighting:
    machine, prolog = record["machine"], record["prolog"]
    named = machine["identity_source"] != BY_NAME
    return Sighting(
        node=record["node"],
        identity=machine["identity"] if named else None,
        source=machine["identity_source"],
        at=record["written"],
        began=prolog["time"] if prolog else None,
        boot_id=machine["boot_id"],
        boot_time=machine["boot_time"],
    )


def decide(seen: Sighting, now: MachineRow, since: float, holder: Holder | None) -> Step:
    """``now`` has the name, since ``since``; ``holder`` is None where nobody has had the identity."""
    if seen.identity is None or seen.identity == now.identity:
        return Step("same")
    if holder is not None and (holder.machine.shared or holder.machine.source == BY_NAME):
        return Step("same")
    if holder is not None and holder.node not in (None, seen.node) and holder.live:
        return Step("same" if _may_have_moved(seen, holder.machine) else "shared")
    if now.source == BY_NAME:
        return _unknown_until_now(seen, since, holder)
    if holder is None and seen.boot_id is not None and seen.boot_id == now.boot_id:
        return Step("identify")  # the boot goes on: its owner gave it another name
    return Step("hand-over", max(seen.since - WOBBLE_S, since), replaced=True)


def _may_have_moved(seen: Sighting, machine: MachineRow) -> bool:
    """Both nodes booted after the holder's last record: whose machine is behind its old name is not known before the
    next record from there. Two that were up at the same time are two machines."""
    if machine.seen is None or machine.boot_time is None or seen.boot_time is None:
        return False
    return machine.boot_time > machine.seen and seen.boot_time > machine.seen


def _unknown_until_now(seen: Sighting, since: float, holder: Holder | None) -> Step:
    start = seen.since - WOBBLE_S
    whole = start <= since + FIRST_POLL_S
    if whole and holder is None:
        return Step("identify")
    return Step("hand-over", since if whole else start)
