"""What was tried against a fault, and did it help: reboots in a machine's history, and whether the fault came back.

A reboot counts as tried where the same fault stood before it and again after it, both within the window of the policy;
order is believed only beyond what the clocks may err. Who asked for the reboot does not matter: power was off.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.recommend.fault import Fault, same
from nccl_slurm.recommend.judgement import WEIGHT, Judgement, judge
from nccl_slurm.recommend.policy import Policy

__all__ = ["Tried", "silent", "tried", "unreturned"]

_DAY_S = 86_400.0
#: Slurm's own end of a reason where a node did not register in ResumeTimeout after ``scontrol reboot`` (slurmctld).
_TIMED_OUT = re.compile(r"(?:\A| : )reboot timed out\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Tried:
    """``seen``: the same fault in other bursts, oldest first. ``failed``: reboots after which it came back. ``since``:
    the last boot after the newest such fault, so nobody knows yet whether it helped. ``lost``: the node did not come
    back, and does not answer. One that answers was never down: the reboot did not happen.
    """

    seen: Sequence[Fault] = ()
    failed: Sequence[MachineEvent] = ()
    since: MachineEvent | None = None
    lost: MachineEvent | None = None

    @property
    def reboots(self) -> int:
        """Reboots that did not help; one from which the node did not come back is one."""
        return len(self.failed) + (self.lost is not None)


def tried(fault: Fault, machine: Machine, known: Sequence[Fault], policy: Policy) -> Tried:
    """``known``: the machine's faults, with the class of the table. Nothing was tried where the fault has no time: what
    came after it can't be told."""
    if fault.time is None:
        return Tried()
    timed = [one for one in known if one.time is not None and same(one, fault, known)]
    alike = _counting(timed, fault, policy)
    chain = sorted([*alike, fault], key=lambda one: one.time or 0.0)
    boots = sorted(machine.of_kind("boot"), key=lambda boot: boot.time)
    newest = chain[-1]
    links = list(_links(chain, boots, policy.limit("repeat-window-d") * _DAY_S))
    near = [*(one for one, _ in reversed(links)), newest]
    since = [boot for boot in boots if newest.before(boot.time, boot.uncertainty_s)]
    lost = unreturned(machine, newest.time or 0.0)
    return Tried(
        seen=tuple(one for one in near if abs((one.time or 0.0) - fault.time) > policy.limit("burst-gap-s")),
        failed=tuple(boot for _, boot in reversed(links) if boot is not None),
        since=since[-1] if since else None,
        lost=lost if lost and _gone(machine, lost) and not any(boot.time > lost.time for boot in since) else None,
    )


def _counting(earlier: Sequence[Fault], fault: Fault, policy: Policy) -> list[Fault]:
    """An earlier fault of the class is this one again only if it is worth as much by the table: a row that was remapped
    (63, a pending row) before a reboot makes no repeat of the first double-bit error after it."""
    now = judge([fault], policy)[0]
    words = {(one.name, one.code, one.text): one for one in earlier}
    counts = {key: _counts(judge([one], policy)[0], now) for key, one in words.items()}
    return [one for one in earlier if counts[one.name, one.code, one.text]]


def _counts(old: Judgement, now: Judgement) -> bool:
    if old.action == "none":
        return False
    if (old.fault.name, old.fault.code, old.after) == (now.fault.name, now.fault.code, now.after):
        return True
    return "replace" in (old.action, *old.after) and WEIGHT.index(old.action) >= WEIGHT.index(now.action)


def _links(
    chain: Sequence[Fault], boots: Sequence[MachineEvent], window: float
) -> Iterator[tuple[Fault, MachineEvent | None]]:
    """From the newest fault backwards: the one before it, and the reboot between the two that did not help.

    It ends where one was quiet for longer than the window, before a reboot or after it: what is older was mended then.
    """
    times = [boot.time for boot in boots]
    for earlier, later in zip(reversed(chain[:-1]), reversed(chain), strict=False):
        early, late = earlier.time or 0.0, later.time or 0.0
        inside = boots[bisect_left(times, early) : bisect_right(times, late)]
        between = [
            b for b in inside if earlier.before(b.time, b.uncertainty_s) and later.after(b.time, b.uncertainty_s)
        ]
        if between and (between[0].time - early > window or late - between[-1].time > window):
            return
        if not between and late - early > window:
            return
        yield earlier, between[-1] if between else None


def unreturned(machine: Machine, since: float) -> MachineEvent | None:
    """The state after ``since`` in which Slurm gave up on a reboot; None where the node is back now.

    Anybody can set the words of a reason. So they count only on a node that is down since a state that Slurm alone
    sets: ``REBOOT_ISSUED``.
    """
    found, issued = None, False
    for event in machine.of_kind("state"):
        base, *flags = event.name.upper().split("+")
        if "REBOOT_ISSUED" in flags or base != "DOWN":
            found, issued = None, "REBOOT_ISSUED" in flags
        elif issued and event.time >= since and _TIMED_OUT.search(str(event.data.get("reason") or "")):
            found = event
    return found


def _gone(machine: Machine, lost: MachineEvent) -> bool:
    """It does not answer, and it did when Slurm issued the reboot: a dead node never heard of it."""
    return silent(machine, lost) and _heard(machine, lost)


def _heard(machine: Machine, lost: MachineEvent) -> bool:
    """By the states before and at the issue of the reboot that ended in ``lost``."""
    before: MachineEvent | None = None
    issued: tuple[MachineEvent | None, MachineEvent] | None = None
    for event in machine.of_kind("state"):
        if event.time > lost.time:
            break
        if "REBOOT_ISSUED" in event.name and (before is None or "REBOOT_ISSUED" not in before.name):
            issued = before, event
        before = event
    return issued is not None and not any(one and "NOT_RESPONDING" in one.name for one in issued)


def silent(machine: Machine, lost: MachineEvent) -> bool:
    """By the newest state: Slurm adds the flag some time after it gave the node up."""
    return "NOT_RESPONDING" in list(machine.of_kind("state", lost.time))[-1].name.split("+")
