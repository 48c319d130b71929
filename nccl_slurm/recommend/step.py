"""One machine's ladder: what its faults are worth, what was tried, and so what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.clock import rfc3339
from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.recommend.fault import Fault, is_over, of_machine, same_gpu
from nccl_slurm.recommend.judgement import WEIGHT, Judgement, classed, judge
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.tried import Tried, tried

__all__ = ["HEAVY", "Step", "next_step", "stamp"]

#: Actions that take a machine out of work: the fleet's cap counts them.
HEAVY = ("reboot", "replace")
#: Class of what a program does to a GPU: it says nothing about the machine, see `pattern`.
_PROGRAM = "gpu-app-fault"
#: Moments of earlier faults that are printed.
_SHOWN = 5


@dataclass(frozen=True)
class Step:
    """``number``: 1, and one more for each reboot that did not help. ``faults``: those of the run that it rests on."""

    action: str
    rule: str
    number: int
    why: Sequence[str]
    faults: Sequence[Fault] = ()
    fleet: bool = False

    def instead(self, action: str, rule: str, why: str) -> Step:
        """A guard's word in its place; the reason that was there stays in front."""
        return replace(self, action=action, rule=rule, why=(*self.why, why))


def next_step(faults: Sequence[Fault], machine: Machine | None, policy: Policy) -> Step | None:
    """The heaviest of what the faults ask for; None where none of them asks for a look at the machine.

    ``machine`` None: its history was not observed, so a reboot is the most. ``faults`` are of trust root.
    """
    known = [classed(one, policy) for one in of_machine(machine)]
    present = [classed(one, policy) for one in faults]
    if machine is not None:
        present += _standing(present, known, machine, policy)
    judged = (one for one in judge(present, policy, known) if one.fault.failure_class != _PROGRAM)
    steps = [_step(one, machine, known, policy) for one in _ends(judged)]
    worth = [step for step in steps if step.action in ("investigate", "reboot", "replace")]
    return max(worth, key=lambda step: (WEIGHT.index(step.action), step.number), default=None)


def _ends(judged: Iterable[Judgement]) -> list[Judgement]:
    """Of judgements that are alike in all but their moment the first and the last, in the order they came: a driver may
    tell of one fault a thousand times, and each asks the whole history."""
    found: dict[tuple[object, ...], list[Judgement]] = {}
    for one in judged:
        fault = one.fault
        alike = (fault.name, fault.code, fault.pci, fault.uuid, fault.link, fault.time is None)
        found.setdefault((*alike, one.action, one.after, one.final, one.hardware, one.fleet), []).append(one)
    ends: list[Judgement] = []
    for group in found.values():
        times = [one.fault.time or 0.0 for one in group]
        places = {times.index(min(times)), len(times) - 1 - times[::-1].index(max(times))}
        ends += [group[place] for place in sorted(places)]
    return ends


def _standing(present: Iterable[Fault], known: Sequence[Fault], machine: Machine, policy: Policy) -> list[Fault]:
    """Readings of the past that no reboot clears (remap failure, SRAM threshold), of a GPU that shows its class now;
    until one no longer shows it."""
    rows = ((fault, policy.row(fault.name, fault.text)) for fault in known)
    stands = [fault for fault, row in rows if row is not None and row.stands and not is_over(fault, machine)]
    return [
        old
        for old in stands
        if any(old.failure_class == now.failure_class and same_gpu(old, now, known) for now in present)
    ]


def _step(judgement: Judgement, machine: Machine | None, known: Sequence[Fault], policy: Policy) -> Step:
    past = Tried() if machine is None else tried(judgement.fault, machine, known, policy)
    action = _action(judgement, past, observed=machine is not None)
    rule = {"replace": "ladder.final" if judgement.final else "ladder.replace", "reboot": "ladder.reboot"}
    why = (judgement.why, *_history(judgement, past, machine))
    step = Step(action, rule.get(action, "ladder.look"), 1 + past.reboots, why, (judgement.fault,), judgement.fleet)
    if past.since is not None and action in HEAVY and not judgement.final:
        return step.instead("investigate", "ladder.rebooted", _since(past.since))
    return step


def _action(judgement: Judgement, past: Tried, *, observed: bool) -> str:
    """Replace needs what outlived a reboot, or what the catalogue calls final, and a history that was looked at. What
    is no hardware evidence is worth a look at most."""
    action = judgement.step(past.reboots)
    if not judgement.hardware and action in HEAVY:
        return "investigate"
    if action == "replace" and not (observed and (past.reboots or judgement.final)):
        return "reboot"
    return action


def _history(judgement: Judgement, past: Tried, machine: Machine | None) -> list[str]:
    if machine is None:
        return []
    where = f" on GPU {judgement.fault.gpu}" if judgement.fault.gpu else ""
    if not past.seen and not past.reboots:
        since = f" since {stamp(machine.since)}" if machine.since is not None else ""
        return [f"Nothing like it{where} is in this machine's history{since}"]
    words = []
    if past.seen:
        moments = ", ".join(stamp(one.time) for one in past.seen[-_SHOWN:])
        words.append(f"The same fault{where} is in its history: {moments} ({len(past.seen)} in all)")
    words += [f"{_boot(boot)}, and it came back" for boot in past.failed]
    if past.lost is not None:
        words.append(f"After the reboot it did not come back: {stamp(past.lost.time)} {past.lost.name}")
    return words


def _since(boot: MachineEvent) -> str:
    return f"{_boot(boot)}, after this fault: look whether it comes back before anything else is done"


def _boot(boot: MachineEvent) -> str:
    by = ", ".join(str(boot.data[key]) for key in ("by", "reason") if boot.data.get(key))
    how = f"asked for by {by}" if boot.name == "asked" and by else boot.name
    return f"Rebooted {stamp(boot.time)} ({how})"


def stamp(seconds: float | None) -> str:
    """``2026-11-29T12:39:15Z``; whole seconds, since Slurm and boots know no finer."""
    text = rfc3339(seconds) if seconds is not None and 0 <= seconds < 253_402_300_800 else None
    return f"{text[:19]}Z" if text else "at an unknown time"
