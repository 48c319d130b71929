"""Machines with a past, and runs whose node reports an Xid, for the tests of the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.model import Evidence
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import Rows
from tests.attribute.scenarios import HANG, evidence, nodes

DAY = 86_400.0
NOW = HANG + 900
PCI = "0000:a1:00"
#: What Slurm makes of a reason after ResumeTimeout (22.05).
TIMED_OUT = "kernel update : reboot issued : reboot timed out"
UUID = "GPU-979426f2-893a-7cbb-c4cf-81472f89a462"


def line(code: int, words: str = "words of the driver", pci: str = PCI) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {words}"


def run_of(rows: Rows, *lines: str, node: str = "n2", at: float = HANG, **views: dict[str, Any]) -> Evidence:
    """A failed run of n1 and n2 whose ``node`` printed these kernel lines, by the real parser."""
    facts = kernel_facts([(at, text) for text in lines], node, rows)
    return evidence(facts, nodes=nodes(**views))


def fault(at: float, code: int, words: str = "words of the driver", pci: str = PCI, **data: Any) -> MachineEvent:
    text = line(code, words, pci)
    return MachineEvent(at, "fault", "kernel.xid", "kernel", text, data={"xid": code, "pci": pci, **data})


def reading(at: float, name: str, failure_class: str | None = "gpu-hw-ecc", **data: Any) -> MachineEvent:
    return MachineEvent(at, "fault", name, "gpu", f"{name} was read", failure_class, data={"pci": PCI, **data})


def boot(at: float, name: str = "asked", **data: Any) -> MachineEvent:
    return MachineEvent(at, "boot", name, "record", uncertainty_s=1.0, data=data)


def state(at: float, name: str, reason: str | None = None) -> MachineEvent:
    return MachineEvent(at, "state", name, "poll", data={"reason": reason})


def never_back(at: float, name: str = "DOWN+NOT_RESPONDING") -> list[MachineEvent]:
    """A reboot that Slurm issued and gave up at this time."""
    return [state(at - 300, "DOWN+REBOOT_ISSUED", "kernel update : reboot issued"), state(at, name, TIMED_OUT)]


def job(at: float, user: str | None = None, name: str = "failed", **data: Any) -> MachineEvent:
    return MachineEvent(at, "job", name, "daemon", data={"job": str(int(at)), "user": user, **data})


def machine(*events: MachineEvent, node: str = "n2", identity: str = "i-0123456789abcdef0", **more: Any) -> Machine:
    more = {"role": "compute", "since": HANG - 100 * DAY, **more}
    return Machine(identity, node, events=tuple(sorted(events, key=lambda event: event.time)), **more)


def after_reboots(
    count: int, code: int, words: str = "words of the driver", end: float = HANG
) -> Sequence[MachineEvent]:
    """The fault, a reboot, the fault, a reboot …, one day each, so that the run's own fault at ``end`` is the last."""
    found: list[MachineEvent] = []
    for number in range(count, 0, -1):
        found += [fault(end - number * DAY, code, words), boot(end - number * DAY + 3600, by="root")]
    return found
