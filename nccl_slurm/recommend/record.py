"""A node record → faults by the word of root: kernel events, changes between snapshots, what the last one shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.model import Fact
from nccl_slurm.recommend.fault import XID, Fault, of_fact
from nccl_slurm.recommend.policy import Policy

__all__ = ["faults", "pretended", "unobserved"]

_DAY_S = 86_400.0
#: Keys of a GPU in a snapshot (capture/gpu) whose true value is a fault as it stands.
_FLAGS = (
    ("remapped", "pending", "gpu.remap-pending"),
    ("remapped", "failure", "gpu.remap-failure"),
    ("ecc", "sram_threshold_exceeded", "gpu.sram-threshold"),
)
_SOURCES = ("kernel log", "gpus")


def faults(record: Mapping[str, Any], policy: Policy) -> list[Fault]:
    """``record`` is valid by its schema. Nothing that the job wrote is among them."""
    facts = [replace(Fact.from_json(fact), trust="root") for fact in record["kernel_events"]]
    told = [of_fact(fact) for fact in facts if fact.kind == XID or policy.row(fact.kind, fact.text)]
    names = {(fault.name, fault.gpu) for fault in told}
    last = record["snapshots"]["after"] or record["snapshots"]["before"]
    return [*told, *(fault for fault in _standing(last) if (fault.name, fault.gpu) not in names)]


def unobserved(record: Mapping[str, Any]) -> list[str]:
    """Sources of faults that the node could not read: no fault of theirs is known, and none is ruled out."""
    return [f"{gap['source']}: {gap['why']}" for gap in record["gaps"] if gap["source"] in _SOURCES]


def pretended(record: Mapping[str, Any], role: str, found: Sequence[Fault], reboots: int) -> Machine:
    """A machine on which each of these faults outlived so many reboots, one a day."""
    events: list[MachineEvent] = []
    for number in range(reboots, 0, -1):
        back = number * _DAY_S
        times = [fault.time for fault in found if fault.time is not None]
        events += [_event(fault, back) for fault in found if fault.time is not None]
        events += [MachineEvent(max(times) - back + _DAY_S / 2, "boot", "asked", "record")] if times else []
    return Machine(record["machine"]["identity"], record["node"], role, events=tuple(events))


def _event(fault: Fault, back: float) -> MachineEvent:
    data = {"xid": fault.code, "pci": fault.pci, "uuid": fault.uuid, "link": fault.link}
    known = {key: value for key, value in data.items() if value is not None}
    at = (fault.time or 0.0) - back
    return MachineEvent(at, "fault", fault.name, "record", fault.text, fault.failure_class, data=known)


def _standing(snapshot: Mapping[str, Any] | None) -> Iterator[Fault]:
    for gpu in (snapshot or {}).get("gpus") or ():
        at = (snapshot or {})["end"]
        base = Fault("", "", at, pci=gpu.get("bus_id"), uuid=gpu.get("uuid"))
        for name, words in _readings(gpu):
            yield replace(base, name=name, text=f"GPU {gpu.get('bus_id')}: {words}")


def _readings(gpu: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for part, key, name in _FLAGS:
        if (gpu.get(part) or {}).get(key) is True:
            yield name, f"{part} {key.replace('_', ' ')}"
    count = (gpu.get("ecc") or {}).get("volatile_uncorrected")
    if isinstance(count, int) and count > 0:
        yield "gpu.ecc-uncorrected", f"{count} uncorrected ECC errors since the driver was loaded"
    action = gpu.get("recovery_action")
    if isinstance(action, str) and action.lower() not in ("", "none"):
        yield "gpu.recovery-action", f"the driver asks for recovery action {action}"
