"""A node record → faults of its machine: what its own kernel reported. Pure.

Only kinds that speak of hardware or of the system: what a program did (a segfault, memory that ran out) is the job's.
An Xid that programs cause is kept too, with its class: repeated on one GPU it says something else than once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nccl_slurm.capture.gpu import bus_id
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.model import CLASSES

__all__ = ["KERNEL_FAULTS", "kernel_faults"]

#: Ids of rows in data/patterns.toml.
KERNEL_FAULTS = frozenset(
    {
        "kernel.amd-ras",
        "kernel.amd-reset",
        "kernel.amd-reset-failed",
        "kernel.cable",
        "kernel.gpu-init",
        "kernel.gpu-lost",
        "kernel.hung-task",
        "kernel.inforom",
        "kernel.link-down",
        "kernel.lockup",
        "kernel.machine-check",
        "kernel.nic-health",
        "kernel.panic",
        "kernel.storage",
        "kernel.sxid",
        "kernel.sxid-nonfatal",
        "kernel.xid",
    }
)

#: Captures of the rows that tell what is meant; names of programs and paths stay out.
_KEPT = ("device", "port", "interface", "cpu", "module", "event", "state", "nic", "severity", "code", "seconds")
_NUMBERS = ("xid", "sxid")


def kernel_faults(record: Mapping[str, Any]) -> list[MachineEvent]:
    """By the node's clock, give or take what it measured itself to be off. A line without a time (what the firmware
    kept of a panic) is from between the run's start and the boot that followed."""
    skew = abs(record["clock"]["offset_s"] or 0.0)
    facts = (fact for fact in record["kernel_events"] if fact["kind"] in KERNEL_FAULTS and fact["trust"] == "root")
    return list(filter(None, (_fault(fact, record, skew) for fact in facts)))


def _fault(fact: Mapping[str, Any], record: Mapping[str, Any], skew: float) -> MachineEvent | None:
    at, uncertainty = fact["time"], (fact["uncertainty_s"] or 0.0) + skew
    if at is None:
        at, uncertainty = _before_boot(record)
    if at is None:
        return None
    hint = fact["hint"] if fact["hint"] in CLASSES else None
    data = dict(_data(fact["data"]))
    return MachineEvent(at, "fault", fact["kind"], "kernel", _text(fact), hint, uncertainty, data)


def _before_boot(record: Mapping[str, Any]) -> tuple[float | None, float]:
    booted, began = record["machine"]["boot_time"], (record["prolog"] or {}).get("time")
    if booted is None or began is None or began > booted:
        return None, 0.0
    return booted, booted - began


def _data(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    gpu = bus_id(str(told.get("pci"))) if told.get("pci") else None
    if gpu is not None:
        yield "gpu", gpu
    for name in _NUMBERS:
        number = str(told.get(name, ""))
        if number.isascii() and number.isdigit():
            yield name, int(number)
    for name in _KEPT:
        if isinstance(told.get(name), (str, int)):
            yield name, told[name]


def _text(fact: Mapping[str, Any]) -> str:
    """An Xid's line names the program that ran: its message alone, where the row found it."""
    message = fact["data"].get("message")
    return str(message) if fact["kind"] == "kernel.xid" and message else str(fact["text"])
