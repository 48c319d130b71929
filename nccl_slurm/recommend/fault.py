"""One fault of one machine by root's word, from a fact of the run or from an event of the machine's history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.model import Fact
from nccl_slurm.parse.xid import details, pci_id

__all__ = ["XID", "Fault", "is_over", "of_event", "of_fact", "of_machine", "same", "same_gpu"]

XID = "kernel.xid"
_MACHINE_CHECKS = ("kernel.machine-check", "kernel.mce")
#: ``0000:10:01.0`` of PCIe AER; ``CPU_SrcID#0_Channel#1_DIMM#0`` or another label of EDAC's.
_PART = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b|(?<= on )\w[\w#-]{2,80}", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """``name`` is the pattern row or reading (``kernel.xid``, ``gpu.remap-pending``). ``pci``, ``uuid``: the GPU, None
    where it is not told. ``time``: seconds since 1970 UTC, None where unknown. ``fact``: id in this run's report, empty
    for one from the history. ``role``: cause, consequence, context.
    """

    name: str
    text: str
    time: float | None = None
    uncertainty_s: float = 0.0
    code: int | None = None
    pci: str | None = None
    uuid: str | None = None
    link: int | None = None
    recovery: int | None = None
    severity: str | None = None
    failure_class: str | None = None
    role: str = "cause"
    fact: str = ""

    @property
    def gpu(self) -> str | None:
        return self.pci or self.uuid

    def before(self, at: float, uncertainty_s: float = 0.0) -> bool:
        """Certainly before a moment: what clocks may err is taken off. False where this fault has no time."""
        return self.time is not None and self.time + self.uncertainty_s < at - uncertainty_s

    def after(self, at: float, uncertainty_s: float = 0.0) -> bool:
        return self.time is not None and self.time - self.uncertainty_s > at + uncertainty_s


def of_fact(fact: Fact) -> Fault:
    """A reading of a snapshot has no time of its own: it was so when it was read, ``read_at``."""
    read_at = _number(fact.data.get("read_at"))
    at = fact.time if fact.time is not None else read_at
    return _fault(fact.kind, fact.text, at, fact.uncertainty_s or 0.0, fact.data, fact.hint, fact.role, fact.id)


def of_event(event: MachineEvent) -> Fault:
    role = str(event.data.get("role", "cause"))
    return _fault(event.name, event.text, event.time, event.uncertainty_s, event.data, event.failure_class, role, "")


def of_machine(machine: Machine | None) -> list[Fault]:
    """All faults in a machine's history, oldest first, but for those of boards that were taken out since: a kernel
    tells the place alone."""
    if machine is None:
        return []
    faults = [of_event(event) for event in machine.of_kind("fault")]
    changes = [of_event(event) for event in machine.of_kind("gpu") if event.name == "changed"]
    told = sorted([*faults, *changes], key=lambda one: one.time or 0.0)
    boards = {one.pci: one.uuid for one in told if one.pci and one.uuid}
    since = {one.pci: one.time or 0.0 for one in changes}
    return [fault for fault in faults if _of_board(fault, boards.get(fault.pci or ""), since.get(fault.pci))]


def _of_board(fault: Fault, uuid: str | None, since: float | None) -> bool:
    """Whether it is of the board that is there now; what tells no uuid is by its time."""
    if fault.uuid and uuid:
        return fault.uuid == uuid
    return since is None or fault.time is None or fault.time >= since


def is_over(fault: Fault, machine: Machine) -> bool:
    """A later reading of this GPU does not show it any more."""
    later = (of_event(event) for event in machine.of_kind("gpu") if event.data.get("was") == fault.name)
    return any(over.after(fault.time or 0.0) and same_gpu(over, fault) for over in later)


def _fault(
    name: str,
    text: str,
    time: float | None,
    uncertainty_s: float,
    data: Mapping[str, Any],
    failure_class: str | None,
    role: str,
    fact: str,
) -> Fault:
    code = data.get("xid") if name == XID and isinstance(data.get("xid"), int) else None
    told = dict(data)
    if code is not None:
        details(str(data.get("message") or text), told)
    ids = [str(told[key]) for key in ("gpu", "pci", "bus_id", "uuid") if told.get(key)]
    return Fault(
        name=name,
        text=text,
        time=time,
        uncertainty_s=uncertainty_s,
        code=code,
        pci=next((bus for bus in map(pci_id, ids) if bus), None),
        uuid=next((one for one in ids if one.startswith(("GPU-", "MIG-"))), None),
        link=told["link"] if isinstance(told.get("link"), int) else None,
        recovery=told["recovery"] if isinstance(told.get("recovery"), int) else None,
        severity=str(told["severity"]) if told.get("severity") else None,
        failure_class=failure_class,
        role=role,
        fact=fact,
    )


def same_gpu(one: Fault, other: Fault, known: Iterable[Fault] = ()) -> bool:
    """The uuid decides where both tell it (a board that was changed keeps its place), else the bus id.

    Where one tells the uuid and the other the bus id, ``known`` may hold a fault that tells both. Two faults that tell
    no GPU are of the machine itself; a GPU is never the same as none.
    """
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    if one.pci and other.pci:
        return one.pci == other.pci
    if one.gpu is None or other.gpu is None:
        return one.gpu is None and other.gpu is None
    pci, uuid = one.pci or other.pci, one.uuid or other.uuid
    return {fault.uuid for fault in known if fault.pci == pci and fault.uuid} == {uuid}


def same(one: Fault, other: Fault, known: Sequence[Fault] = ()) -> bool:
    """The same fault again: same class on the same GPU, and on the same NVLink or other part where both tell it.

    Without a class only the same reading is the same.
    """
    parts = {_part(one), _part(other)} - {None}
    if len(parts) > 1:
        return False
    if one.failure_class is None or other.failure_class is None:
        alike = (one.name, one.code) == (other.name, other.code)
    else:
        alike = one.failure_class == other.failure_class
    linked = one.link is None or other.link is None or one.link == other.link
    return alike and linked and same_gpu(one, other, known)


def _part(fault: Fault) -> str | None:
    """Of a machine check the PCI device or the memory module that its line names."""
    found = _PART.search(fault.text) if fault.name in _MACHINE_CHECKS else None
    return found[0].lower() if found else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
