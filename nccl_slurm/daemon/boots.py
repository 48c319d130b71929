"""A machine booted: by the boot id of its record, by Slurm's BootTime, by slurmdbd's events. Pure.

slurmd tells its boot time as the clock less the uptime, so it wobbles by a second, and jumps with a clock that is set.
A boot always starts slurmd anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.daemon.identity import Sighting
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import MachineRow, NodeEventRow
from nccl_slurm.scheduler.client import NodeEvent, NodeState

__all__ = ["boot_of_poll", "boot_of_record", "boots_of_events", "reads_anew", "told"]

#: No machine is back sooner after it went down.
SOONEST_S = 10.0
#: slurmd starts within minutes of the boot that it tells of.
UNTOLD_S = 600.0
#: Slurm's own end of a reason; the same words inside a person's sentence tell nothing.
_ASKED = re.compile(r"(?:\A| : )reboot (?:issued|requested|asap)(?: : reboot complete)?\Z", re.IGNORECASE)
_UNASKED = "Node unexpectedly rebooted"
_ASKED_FLAGS = ("REBOOT_ISSUED", "REBOOT_REQUESTED")


def boot_of_poll(row: MachineRow, node: NodeState) -> MachineEvent | None:
    if row.boot_time is None or node.boot_time is None or node.boot_time - row.boot_time < SOONEST_S:
        return None
    if node.slurmd_start is not None and node.slurmd_start == row.slurmd_start:
        return None  # the same slurmd tells another boot time: its clock was set
    return MachineEvent(node.boot_time, "boot", "unasked", "poll", uncertainty_s=1.0)


def reads_anew(row: MachineRow, node: NodeState) -> bool:
    """Whether what Slurm tells is to be kept; a wobble is not."""
    if node.boot_time is None:
        return False
    moved = row.boot_time is None or abs(node.boot_time - row.boot_time) >= SOONEST_S
    return moved or (node.slurmd_start is not None and node.slurmd_start != row.slurmd_start)


def boot_of_record(row: MachineRow, seen: Sighting) -> MachineEvent | None:
    """Another boot id than the machine's newest record had."""
    if row.boot_id is None or seen.boot_id is None or row.boot_id == seen.boot_id:
        return None
    if seen.boot_time is not None:
        return MachineEvent(seen.boot_time, "boot", "unasked", "record", uncertainty_s=1.0)
    at = seen.at if seen.began is None else seen.began
    return MachineEvent(at, "boot", "unasked", "record", uncertainty_s=max(at - (row.seen or at), 0.0))


def boots_of_events(
    rows: Sequence[NodeEvent], booted: Mapping[str, float | None]
) -> Iterator[tuple[str, MachineEvent]]:
    """Node and boot, of slurmdbd's rows that tell of one. ``booted``: BootTime by node, as polled after these rows.

    The row of a reboot that Slurm issued ends in one way whether the node came back, an admin resumed it before it went
    down, or ResumeTimeout passed without a boot. So it is a boot only where BootTime lies in it. The newest boot since
    then is all that BootTime tells: an earlier one that nobody polled is not observed.
    """
    for row in rows:
        at = booted.get(row.node)
        if _is_reboot(row):
            if at is not None and row.end is not None and row.start - SOONEST_S <= at <= row.end + SOONEST_S:
                data = {"by": _user(row.user), "reason": row.reason}
                yield row.node, MachineEvent(at, "boot", "asked", "slurmdbd", uncertainty_s=1.0, data=data)
        elif row.state == "DOWN" and row.reason == _UNASKED and (at is None or at >= row.start - UNTOLD_S):
            yield row.node, MachineEvent(row.start, "boot", "unasked", "slurmdbd", uncertainty_s=UNTOLD_S)


def _is_reboot(row: NodeEvent) -> bool:
    """By its state: anybody can set the words of a reason."""
    return "REBOOT_ISSUED" in row.flags or row.state in ("BOOT", "REBOOT")


def _user(user: str | None) -> str | None:
    """``slurm`` of sacctmgr's ``slurm(64030)``."""
    return user.partition("(")[0] if user else None


def told(boot: MachineEvent, before: NodeEventRow | None) -> MachineEvent:
    """``before`` is the state that the node was in when it booted."""
    if before is None:
        return boot
    reason = before.reason or ""
    flags = before.state.split("+")
    if any(flag in flags for flag in _ASKED_FLAGS) or _ASKED.search(reason):
        return replace(boot, name="asked", data={"by": before.reason_by, "reason": before.reason})
    if reason.startswith("Action:"):
        return replace(boot, name="asked", data={"by": before.reason_by, "reason": reason})
    return boot
