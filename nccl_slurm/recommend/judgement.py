"""Faults of one machine → what each is worth by the decision table, each read beside the others of its burst.

Nothing here knows what was tried before: see `tried` and `step`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.parse.xidrow import Xid
from nccl_slurm.recommend import nvlink
from nccl_slurm.recommend.fault import XID, Fault, same_gpu
from nccl_slurm.recommend.policy import HARDWARE, FaultRow, Policy

__all__ = ["HARDWARE", "IMEX_DOMAIN", "REBOOTS", "RECOVERIES", "WEIGHT", "Judgement", "classed", "judge"]

#: Actions on a node by weight.
WEIGHT = ("none", "unknown", "fix-code", "fix-config", "network", "investigate", "reboot", "replace")

_RECOVERY = 154
#: nvmlDeviceGpuRecoveryAction_t: 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain,
#: 6 bus reset, 7 system reboot. 5 is of the domain and not of this node.
RECOVERIES = range(1, 8)
IMEX_DOMAIN = 5
REBOOTS = (2, 7)
_DRAM, _SRAM = 171, 172
_DBE = 48
_REMAPPED = (63, 64)
_HOUR_S = 3600.0
#: By code and link the GPUs and the moments, in order. The history has the run's own faults too, with the same times.
_Links = Mapping[tuple[int, "int | None"], Sequence[tuple[Fault, Sequence[float]]]]


@dataclass(frozen=True)
class Judgement:
    """``action``: first step. ``after``: the step after one reboot that did not help, after two, …; empty: ``action``.
    ``final``: no reboot helps. ``hardware`` False: never above a look. ``why``: the table's words.
    """

    fault: Fault
    action: str
    after: tuple[str, ...]
    final: bool
    hardware: bool
    fleet: bool
    why: str

    def step(self, reboots: int) -> str:
        if reboots == 0 or self.final or not self.after:
            return self.action
        return self.after[min(reboots, len(self.after)) - 1]


def classed(fault: Fault, policy: Policy) -> Fault:
    """With the class of the decision table, which a site may have changed since the fact was made."""
    xid = policy.xids.get(fault.code) if fault.code is not None else None
    if xid is not None:
        return replace(fault, failure_class=None if xid.hint == "unknown" else xid.hint)
    row = policy.row(fault.name, fault.text)
    return replace(fault, failure_class=row.failure_class) if row and row.failure_class else fault


def judge(faults: Iterable[Fault], policy: Policy, known: Sequence[Fault] = ()) -> tuple[Judgement, ...]:
    """One for each fault, in order. ``known``: the machine's other faults, for whose GPU is whose."""
    found = [classed(fault, policy) for fault in faults]
    company = _company(found, policy)
    told = [*found, *known]
    links = _by_link(told)
    return tuple(_one(fault, company[fault.time], policy, told, links) for fault in found)


def _company(faults: Iterable[Fault], policy: Policy) -> dict[float | None, list[Fault]]:
    """By time: those of the same burst (no gap over the limit between one and the next), and all without a time, which
    are of any burst. Of many that tell the same two are there, so that each has the other beside it."""
    gap = policy.limit("burst-gap-s")
    timed = sorted((one for one in faults if one.time is not None), key=lambda one: one.time or 0.0)
    timeless = [one for one in faults if one.time is None]
    bursts: list[list[Fault]] = []
    for one in timed:
        if bursts and (one.time or 0.0) - (bursts[-1][-1].time or 0.0) <= gap:
            bursts[-1].append(one)
        else:
            bursts.append([one])
    found: dict[float | None, list[Fault]] = {None: _few([*timed, *timeless])}
    for burst in bursts:
        found |= dict.fromkeys((one.time for one in burst), _few([*burst, *timeless]))
    return found


def _few(faults: Iterable[Fault]) -> list[Fault]:
    alike: dict[tuple[object, ...], list[Fault]] = {}
    for one in faults:
        alike.setdefault((one.name, one.code, one.pci, one.uuid, one.recovery, one.role), []).append(one)
    return [one for group in alike.values() for one in (group if len(group) < 3 else (group[0], group[-1]))]


def _one(fault: Fault, burst: Sequence[Fault], policy: Policy, known: Sequence[Fault], links: _Links) -> Judgement:
    if fault.name != XID:
        return _plain(fault, policy.row(fault.name, fault.text))
    xid = policy.xids.get(fault.code) if fault.code is not None else None
    if xid is None:
        return Judgement(fault, "investigate", (), False, False, False, "a code that NVIDIA's catalogue does not have")
    company = [one for one in burst if one is not fault]
    mine = [one for one in company if same_gpu(one, fault, known)]
    return _raised(_read_on(_of_row(fault, xid), company, policy, links), mine)


def _plain(fault: Fault, row: FaultRow | None) -> Judgement:
    if row is None:
        return Judgement(fault, "investigate", (), False, False, False, "not in the decision table")
    return Judgement(fault, row.action, row.after, row.final, row.hardware, False, row.source)


def _of_row(fault: Fault, xid: Xid) -> Judgement:
    """Codes that follow others (43, 45, 154) accuse nothing, alone or not: what they follow may be an end by hand."""
    hardware = xid.hint in HARDWARE and not xid.unused
    action = "none" if xid.role == "consequence" else xid.action
    why = f"Xid {xid.code} {xid.mnemonic}: NVIDIA {xid.nvidia}, then {xid.investigatory}"
    return Judgement(fault, action, xid.after, xid.final, hardware, xid.fleet, why)


def _read_on(judgement: Judgement, company: Sequence[Fault], policy: Policy, links: _Links) -> Judgement:
    code = judgement.fault.code or 0
    if code == _DBE:
        return _double_bit(judgement, company)
    told = nvlink.read(code, judgement.fault.text, policy, alone=not _others(company, policy))
    if told is None:
        return judgement
    action = judgement.action if told.action is None else told.action
    after = judgement.after if told.after is None else told.after
    words = [judgement.why, told.why]
    times = _on_link(judgement.fault, links, policy) if told.report else 0
    if told.report and times >= told.report:
        words.append(f"{times} times on this link: NVIDIA asks for a report")
    return replace(judgement, action=action, after=after, why="; ".join(words))


def _by_link(faults: Iterable[Fault]) -> _Links:
    found: dict[tuple[int, int | None], dict[Fault, set[float]]] = {}
    for one in faults:
        if one.code is not None and one.time is not None:
            gpu = Fault("", "", pci=one.pci, uuid=one.uuid)
            found.setdefault((one.code, one.link), {}).setdefault(gpu, set()).add(one.time)
    return {key: [(gpu, sorted(times)) for gpu, times in gpus.items()] for key, gpus in found.items()}


def _on_link(fault: Fault, links: _Links, policy: Policy) -> int:
    """How often this code was on this link of this GPU around this time, which is among them."""
    if fault.time is None:
        return 1
    window = policy.limit("link-window-h") * _HOUR_S
    low, high = fault.time - window, fault.time + window
    near = (times for gpu, times in links[fault.code or 0, fault.link] if same_gpu(gpu, fault))
    return sum(bisect_right(times, high) - bisect_left(times, low) for times in near)


def _others(company: Iterable[Fault], policy: Policy) -> list[Fault]:
    """Errors that something may follow: causes, but no further message of a code that follows."""
    rows = ((fault, policy.xids.get(fault.code or 0)) for fault in company)
    return [fault for fault, xid in rows if fault.role == "cause" and (xid is None or xid.role == "cause")]


def _double_bit(judgement: Judgement, company: Sequence[Fault]) -> Judgement:
    """WORKFLOW_XID_48: alone RESET_GPU; with 63 or 64 DRAIN_AND_RESET. Which memory, 171 and 172 tell."""
    codes = {fault.code for fault in company}
    words = [judgement.why]
    words += ["with Xid 63 or 64 beside it: let the node's other jobs end first"] if codes & {*_REMAPPED} else []
    words += [f"in {name}" for code, name in ((_DRAM, "DRAM"), (_SRAM, "SRAM")) if code in codes]
    return replace(judgement, why="; ".join(words))


def _raised(judgement: Judgement, company: Iterable[Fault]) -> Judgement:
    """The driver's own word for the Xid before it (154, by number) raises the step of a hardware fault; it lowers none,
    and back to None clears nothing."""
    numbers = {fault.recovery for fault in company if fault.code == _RECOVERY and fault.recovery}
    if not numbers or not judgement.hardware or judgement.final:
        return judgement
    told = "; ".join(f"Xid 154 recovery action {number}" for number in sorted(numbers))
    action = "investigate" if numbers == {IMEX_DOMAIN} else "reboot"
    raised = WEIGHT.index(action) > WEIGHT.index(judgement.action)
    return replace(
        judgement,
        action=action if raised else judgement.action,
        after=judgement.after or ("investigate",),
        why=f"{judgement.why}; {told}",
    )
