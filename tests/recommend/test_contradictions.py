"""Cases on which public sources disagree: the decision here, with whom it goes. AWS's documents are its public HyperPod
skills (node catalogue ND, MFU and performance references MF, PD) and its samples' check (ADT)."""

from __future__ import annotations

import pytest

from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.recommend.fault import of_event
from nccl_slurm.recommend.policy import default
from nccl_slurm.recommend.step import next_step
from tests.attribute.scenarios import HANG
from tests.recommend.past import DAY, boot, fault, machine, reading


def lasting(make: MachineEvent, reboots: int) -> list[MachineEvent]:
    """The fault, then so many reboots that did not help; the last event is now."""
    found = []
    for number in range(reboots, 0, -1):
        at = HANG - number * DAY
        again = MachineEvent(at, make.kind, make.name, make.source, make.text, make.failure_class, 0.0, make.data)
        found += [again, boot(at + 3600)]
    return [*found, make]


def after(make: MachineEvent, reboots: int) -> str:
    events = lasting(make, reboots)
    found = next_step([of_event(events[-1])], machine(*events), default())
    return found.action if found else "none"


def other(name: str, text: str = "") -> MachineEvent:
    return MachineEvent(HANG, "fault", name, "kernel", text)


REPLACED, LOOKED_AT = ("reboot", "replace", "replace"), ("reboot", "investigate", "investigate")
UE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Channel#1_DIMM#0"

CASES = [
    # what, (now, after a reboot, after two), who says so, who says otherwise
    (
        "48",
        fault(HANG, 48),
        ("reboot", "replace", "replace"),
        "NVIDIA, MF: reset first",
        "PD: drain and replace at once",
    ),
    ("63", fault(HANG, 63), ("none", "none", "none"), "NVIDIA, MF, ADT: ignore", "GPUd, Azure: fatal; PD: replace"),
    ("64", fault(HANG, 64), ("reboot", "replace", "replace"), "NVIDIA: reset, then support", "ADT since 2026: isolate"),
    ("74", fault(HANG, 74), ("reboot", "replace", "replace"), "MF, ADT: reset", "NC, PD: drain and replace at once"),
    ("79", fault(HANG, 79), ("reboot", "replace", "replace"), "NVIDIA, ADT: restart", "NC: drain and replace at once"),
    ("92", fault(HANG, 92), ("none", "none", "none"), "NVIDIA, ADT: ignore", "PD: drain and replace"),
    ("94", fault(HANG, 94), ("investigate",) * 3, "NVIDIA, ADT: restart; GPUd: never replace", "PD: drain and replace"),
    ("95", fault(HANG, 95), ("reboot", "replace", "replace"), "NVIDIA, ADT: reset", "PD: drain and replace at once"),
    ("119", fault(HANG, 119), ("reboot", "replace", "replace"), "NVIDIA, MF: reset", "AWS: switch GSP off"),
    ("120", fault(HANG, 120), ("reboot", "replace", "replace"), "NVIDIA, MF: reset", "AWS: switch GSP off"),
    ("62", fault(HANG, 62), ("reboot", "replace", "replace"), "NVIDIA: reset", "PD: drain and replace at once"),
    ("13", fault(HANG, 13), ("none",) * 3, "NVIDIA: the program", "PD: hardware if it recurs"),
    ("31", fault(HANG, 31), ("none",) * 3, "NVIDIA: the program", "Sichek: critical, reset"),
    ("43", fault(HANG, 43), ("none",) * 3, "NVIDIA: ignore", "PD: replace if it recurs"),
    ("69", fault(HANG, 69), ("none",) * 3, "NVIDIA: the program", "Azure, GPUd: fatal"),
    ("54", fault(HANG, 54), ("replace",) * 3, "NVIDIA: by hand; ADT: isolate", "PD: hardware until a diagnosis passes"),
    ("160", fault(HANG, 160), ("none",) * 3, "NVIDIA: ignore", "NVSentinel's older list: RESTART_BM"),
    ("155", fault(HANG, 155), ("reboot", "investigate", "investigate"), "NVIDIA: software-defined", "Amazon ECS: flit"),
    ("156", fault(HANG, 156), ("reboot", "reboot", "investigate"), "NVIDIA: retirement", "Amazon ECS: lane error"),
    (
        "81",
        fault(HANG, 81),
        ("investigate",) * 3,
        "NVIDIA: unused from Ampere on",
        "PD: any Xid from 48 on is hardware",
    ),
    ("125", fault(HANG, 125), ("investigate",) * 3, "NVIDIA: unused", "ADT: contact support"),
    ("157", fault(HANG, 157), ("investigate", "replace", "replace"), "NVIDIA: ignore, then support", "ADT: support"),
    ("corrected ECC", reading(HANG, "gpu.ecc-corrected"), ("none",) * 3, "NVIDIA", "NC: 100 a day; PD: 1,000 a day"),
    ("aggregate ECC", reading(HANG, "gpu.ecc-aggregate"), ("none",) * 3, "NX: history", "PD: replace now"),
    (
        "uncorrected ECC",
        reading(HANG, "gpu.ecc-uncorrected"),
        ("reboot", "replace", "replace"),
        "ADT: reset",
        "NC, PD, MF: drain and replace at once",
    ),
    (
        "remapping pending",
        reading(HANG, "gpu.remap-pending"),
        ("reboot", "reboot", "investigate"),
        "NVIDIA: a reset applies it",
        "DG: replace after a reboot",
    ),
    ("remapping failed", reading(HANG, "gpu.remap-failure"), ("replace",) * 3, "NVIDIA, DG: RMA", "older AWS: reset"),
    (
        "7 of 8 GPUs",
        other("gpu.count", "7 GPUs, Slurm has 8"),
        ("reboot", "replace", "replace"),
        "HyperPod's agent reboots",
        "soperator",
    ),
    (
        "10 of 16 GPUs",
        other("gpu.count", "10 GPUs, Slurm has 16"),
        ("reboot", "replace", "replace"),
        "HyperPod's agent reboots",
        "soperator",
    ),
    (
        "0 of 8 GPUs",
        other("gpu.count", "0 GPUs, Slurm has 8"),
        ("reboot", "investigate", "investigate"),
        "HyperPod's agent reboots",
        "soperator",
    ),
    ("temperature", other("gpu.hot"), ("investigate",) * 3, "ours: cooling first", "NC: 80, MH: 83, 88 and 92 degrees"),
    ("PCIe width", other("gpu.pcie-width"), ("investigate",) * 3, "MF: slow", "-"),
    (
        "NVLink inactive",
        other("gpu.nvlink-inactive"),
        ("investigate",) * 3,
        "NVSentinel #1481",
        "NC: replace; MF: reset",
    ),
    ("EFA count", other("port.missing"), ("investigate", "replace", "replace"), "ours", "DG: replace; ADT: isolate"),
    (
        "machine check",
        other("kernel.machine-check", UE),
        ("investigate", "replace", "replace"),
        "ours",
        "NX: replace at once",
    ),
    (
        "soft lockup",
        other("kernel.lockup"),
        ("investigate",) * 3,
        "ours: a kernel bug too",
        "NX: reboot, then replace",
    ),
    ("panic", other("kernel.panic"), ("investigate",) * 3, "ours: a kernel bug too", "NX: reboot, then replace"),
    ("memory ran out", other("kernel.oom"), ("none",) * 3, "NX: the work changes", "-"),
    ("DCGM isolate", other("dcgm.isolate"), ("reboot", "replace", "replace"), "ours: one reboot first", "ADT: isolate"),
    ("clock", other("clock.unsynchronised"), ("investigate",) * 3, "NX: restart chronyd", "-"),
]


@pytest.mark.parametrize(("name", "event", "steps", "with_whom", "against"), CASES, ids=[case[0] for case in CASES])
def test_what_is_done_where_sources_disagree(
    name: str, event: MachineEvent, steps: tuple[str, ...], with_whom: str, against: str
) -> None:
    assert tuple(after(event, reboots) for reboots in range(3)) == steps
    assert with_whom and against


def test_every_row_tells_its_source() -> None:
    policy = default()
    for _, event, *_ in CASES:
        code = event.data.get("xid")
        row = policy.xids[code] if code else policy.row(event.name, event.text)
        assert row is not None and row.source
