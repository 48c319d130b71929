"""Guards: what keeps a due step from being recommended. Each is a pure question to what is known of site and history.

A guard only ever lowers a step. Where what it asks for was not observed it says nothing, but for the role: a node
whose role is not known counts as a Slurm controller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.reasons import Reasons
from nccl_slurm.model import NodeView
from nccl_slurm.recommend.fault import of_event
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.site import NodeNow, Site, short
from nccl_slurm.recommend.step import HEAVY, Step, stamp
from nccl_slurm.recommend.tried import silent, unreturned

__all__ = ["Case", "allowed_open", "guarded", "in_progress", "others_reason", "role_of"]

#: Flags of a node that something is being done to (slurm.h, scontrol show node), and reasons that tell the same.
_FLAGS = ("REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT^", "REBOOT@", "BOOT", "MAINT", "POWERING", "POWER_", "POWERED_")
_REASONS = re.compile(r"action:re(?:boot|place)\b|(?:\A| : )reboot (?:requested|issued)\Z", re.IGNORECASE)
#: ``gres/gpu count reported lower than configured (0 < 8)``: slurmd started before the driver was there.
_NO_GPU_YET = re.compile(r"gres/gpu\S* count .{0,60}\(0 < \d{1,4}\)")
_OF_ROLE = {
    "controller": "It is a Slurm controller{which}: plan a fail-over first, never reboot it unplanned",
    "database": "slurmdbd or its database runs on it: plan a fail-over first, never reboot it unplanned",
    "login": "It is a login node: plan a fail-over first, and tell the users who work there",
    "unknown": "Its role is not known and it may be a Slurm controller: plan a fail-over first, "
    "never reboot it unplanned",
}
_HOUR_S = 3600.0
#: Kind of event, what makes two of it alike, time.
_Moment = tuple[str, tuple[object, ...], float]


@dataclass(frozen=True)
class Case:
    """One node and what is known around it. ``machines``: by node, this one's among them; of the whole fleet where the
    caller has them. ``now`` None: no clock was given, so nothing is called recent.
    """

    name: str
    policy: Policy
    view: NodeView | None = None
    machines: Mapping[str, Machine] | None = None
    site: Site = field(default_factory=Site)
    now: float | None = None

    @property
    def machine(self) -> Machine | None:
        return (self.machines or {}).get(self.name)

    @property
    def node(self) -> NodeNow:
        """As Slurm shows it now, else as it was at the run's end."""
        view = self.view or NodeView(self.name)
        return self.site.now.get(self.name, NodeNow(view.state_at_end, view.reason))

    @property
    def names(self) -> frozenset[str]:
        """What hosts may be called that are this node: a NodeName need not be the host's name."""
        return frozenset(map(short, (self.name, *self.node.hosts)))

    def others(self) -> Iterator[tuple[str, Machine]]:
        return ((name, machine) for name, machine in (self.machines or {}).items() if name != self.name)


def guarded(case: Case, step: Step) -> Step:
    """The step after the first guard that has a word to say, else the step as it was."""
    guards: tuple[Callable[[Case, Step], Step | None], ...] = (_moved, _in_progress, _fresh_boot)
    if step.action in HEAVY:
        guards = (*guards, _role, _site_event, _fleet, _not_returning, _late_boot, _queued)
    return next((lowered for lowered in (guard(case, step) for guard in guards) if lowered is not None), step)


def role_of(case: Case) -> str:
    """The most careful of all words: compute | login | database | controller | unknown."""
    listed = {"controller": case.site.controllers, "database": case.site.databases, "login": case.site.logins}
    told = {role for role, hosts in listed.items() if not case.names.isdisjoint(map(short, hosts))}
    told |= {case.view.role} if case.view else set()
    told |= {case.machine.role} if case.machine else set()
    return next((role for role in ("controller", "database", "login", "compute") if role in told), "unknown")


def in_progress(node: NodeNow, reasons: Reasons) -> str | None:
    """What is being done to the node right now, in Slurm's words; None for nothing that shows."""
    flags = [flag for flag in re.split(r"[+,\s]+", (node.state or "").upper()) if flag.startswith(_FLAGS)]
    if flags:
        return "+".join(flags)
    return node.reason if _REASONS.search(node.reason or "") or reasons.under_way(node.reason) else None


def others_reason(node: NodeNow) -> str | None:
    """Another's reason on the node: a command would write over it, and whoever set it had one. Slurm takes its own
    ``Not responding`` away itself."""
    reason = (node.reason or "").strip()
    return None if not reason or reason.startswith("nccl-slurm") or reason == "Not responding" else reason


def _moved(case: Case, step: Step) -> Step | None:
    """A name is no identity (a node without one is told by its name), and the change must come after the fault."""
    old, new = case.view.identity if case.view else None, case.machine
    at = [fault.time for fault in step.faults if fault.time is not None]
    if not old or old == case.name or new is None or new.identity == old or new.since is None or not at:
        return None
    if new.since <= max(at):
        return None
    return step.instead(
        "none", "ladder.moved", f"Another machine has this name since {stamp(new.since)}: {new.identity}"
    )


def _in_progress(case: Case, step: Step) -> Step | None:
    what = in_progress(case.node, case.site.reasons)
    if what is None:
        return None
    return step.instead("none", "ladder.in-progress", f"Recovery is in progress ({what[:120]}): nothing new")


def _fresh_boot(case: Case, step: Step) -> Step | None:
    booted = case.node.booted
    boots = [boot.time for boot in case.machine.of_kind("boot")] if case.machine else []
    last = max([*boots, *([booted] if booted is not None else [])], default=None)
    if last is None or case.now is None or not _NO_GPU_YET.search(case.node.reason or ""):
        return None
    if not 0 <= case.now - last < case.policy.limit("fresh-boot-s"):
        return None
    return step.instead(
        "none", "ladder.wait", f"It booted {stamp(last)}, and Slurm sees no GPU yet: wait for the driver"
    )


def _role(case: Case, step: Step) -> Step | None:
    role = role_of(case)
    if role == "compute":
        return None
    mine = [short(host) in case.names for host in case.site.controllers]
    which = "" if not any(mine) else " (primary)" if mine[0] else " (backup)"
    return step.instead("investigate", "ladder.controller", _OF_ROLE[role].format(which=which))


def _site_event(case: Case, step: Step) -> Step | None:
    """The same fault, or the same reason of Slurm's, on several nodes at the same time."""
    window = case.policy.limit("site-window-s")
    moments = _moments(case, step, window)
    alike = {
        name
        for name, machine in case.others()
        for event in machine.events
        if any(_near(event, at, window) and event.kind == kind and key == _key(event) for kind, key, at in moments)
    }
    switch = case.node.switch
    beside = {name for name in alike if switch and case.site.now.get(name, NodeNow()).switch == switch}
    if 1 + len(alike) < case.policy.limit("site-nodes") and not beside:
        return None
    where = f" on switch {switch}" if beside else ""
    names = ", ".join(sorted(alike)[:5])
    why = f"The same happened to {len(alike)} more nodes within {window:g} s{where} ({names}): an event of the site"
    return step.instead("investigate", "ladder.site-event", f"{why}, no node is singled out")


def _moments(case: Case, step: Step, window: float) -> list[_Moment]:
    """What to look for elsewhere: this step's faults, and what Slurm said of this node around them."""
    timed = [fault for fault in step.faults if fault.time is not None]
    found: list[_Moment] = [("fault", (fault.name, fault.code), fault.time or 0.0) for fault in timed]
    for event in case.machine.events if case.machine else ():
        if _told_by_slurm(event) and any(_near(event, fault.time or 0.0, window) for fault in timed):
            found.append((event.kind, _key(event), event.time))
    return found


def _told_by_slurm(event: MachineEvent) -> bool:
    if event.kind == "state":
        return bool(event.data.get("reason"))
    return event.kind == "boot" and event.name == "unasked"


def _key(event: MachineEvent) -> tuple[object, ...]:
    if event.kind == "fault":
        fault = of_event(event)
        return (fault.name, fault.code)
    return (event.data.get("reason"),) if event.kind == "state" else (event.name,)


def _near(event: MachineEvent, at: float, window: float) -> bool:
    return abs(event.time - at) <= window + event.uncertainty_s


def _fleet(case: Case, step: Step) -> Step | None:
    """GSP codes on several nodes within a day: a driver or an image, whatever each node's own history says."""
    if not step.fleet:
        return None
    window = case.policy.limit("fleet-window-h") * _HOUR_S
    moments: list[_Moment] = [("fault", (f.name, f.code), f.time) for f in step.faults if f.time is not None]
    alike = {
        name
        for name, machine in case.others()
        for event in machine.of_kind("fault")
        if any(_near(event, at, window) and key == _key(event) for _, key, at in moments)
    }
    if 1 + len(alike) < case.policy.limit("site-nodes"):
        return None
    why = f"{len(alike)} more nodes showed it within {window / _HOUR_S:g} h: look at driver and image first"
    return step.instead("investigate", "ladder.fleet", why)


def _not_returning(case: Case, step: Step) -> Step | None:
    if case.now is None or not case.machines:
        return None
    since = case.now - case.policy.limit("fleet-window-h") * _HOUR_S
    gone = sorted(name for name, machine in case.machines.items() if unreturned(machine, since))
    if len(gone) < case.policy.limit("site-nodes"):
        return None
    names = ", ".join(gone[:5])
    why = (
        f"{len(gone)} nodes did not come back after a reboot ({names}): image, driver or network boot, not the hardware"
    )
    return step.instead("investigate", "ladder.not-returning", why)


def _late_boot(case: Case, step: Step) -> Step | None:
    """ResumeTimeout is 60 s by default, and a GPU node may boot for a quarter of an hour."""
    if case.now is None or case.machine is None:
        return None
    lost = unreturned(case.machine, case.now - case.policy.limit("late-boot-s"))
    if lost is None or not silent(case.machine, lost):
        return None
    why = f"Slurm gave up on its reboot at {stamp(lost.time)}, and it may be booting still: look at its console"
    return step.instead("none", "ladder.wait", why)


def _queued(case: Case, step: Step) -> Step | None:
    """At most so many nodes with an open reboot or replace; one that is open already keeps its place."""
    others = sorted(name for name in case.site.open if name != case.name)
    allowed = allowed_open(case.policy, case.site.nodes)
    if case.name in case.site.open or len(others) < allowed:
        return None
    why = (
        f"{step.action} is due and queued: {len(others)} of at most {allowed} nodes are open ({', '.join(others[:5])})"
    )
    return step.instead("investigate", "ladder.queued", why)


def allowed_open(policy: Policy, nodes: int | None) -> int:
    """How many nodes may have an open reboot or replace. ``nodes``: of the fleet, None where nobody counted."""
    share = int(policy.limit("open-share") * nodes) if nodes is not None else 0
    return max(share, int(policy.limit("open-nodes")))
