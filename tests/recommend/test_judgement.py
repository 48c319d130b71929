"""What faults are worth beside one another: 48 with its companions, 154 by its number, followers, NVLink, readings."""

from __future__ import annotations

import pytest

from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.recommend.fault import of_event, of_machine, same, same_gpu
from nccl_slurm.recommend.judgement import judge
from nccl_slurm.recommend.policy import default
from nccl_slurm.recommend.step import next_step
from tests.attribute.scenarios import HANG
from tests.recommend.past import DAY, PCI, UUID, fault, machine, reading

OTHER = "0000:b2:00"
RECOVERY = "GPU recovery action changed from 0x0 (None) to 0x{:x} ({})"


def recovery(number: int, text: str = "GPU Reset Required", at: float = HANG, pci: str = PCI) -> MachineEvent:
    return fault(at, 154, RECOVERY.format(number, text), pci)


def worth(*events: MachineEvent) -> list[tuple[str, str | None]]:
    """(what, first step) of each fault."""
    return [
        (f"xid {one.fault.code}" if one.fault.code else one.fault.name, one.action)
        for one in judge([of_event(event) for event in events], default())
    ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # 43, 45: they follow; alone they may be an end by hand (Ctrl-C), so nothing is restarted for them
        ([fault(HANG, 45)], ["none"]),
        ([fault(HANG, 79), fault(HANG + 1, 45), fault(HANG + 1, 43)], ["reboot", "none", "none"]),
        # 63 alone: remapped, nothing to do; with 48 the step is 48's
        ([fault(HANG, 63)], ["none"]),
        ([fault(HANG, 48), fault(HANG + 1, 63)], ["reboot", "none"]),
        ([fault(HANG, 48), reading(HANG + 9, "gpu.sram-threshold")], ["reboot", "replace"]),
        ([fault(HANG, 94), fault(HANG + 1, 63)], ["investigate", "none"]),
        # 154 by number: raises a hardware fault, never a program's, and lowers none
        ([fault(HANG, 94), recovery(0, "None")], ["investigate", "none"]),
        ([fault(HANG, 94), recovery(1)], ["reboot", "none"]),
        ([fault(HANG, 94), recovery(1, "PF FLR")], ["reboot", "none"]),
        ([fault(HANG, 94), recovery(2, "OS Reboot")], ["reboot", "none"]),
        ([fault(HANG, 94), recovery(3, "Drain P2P")], ["reboot", "none"]),
        ([fault(HANG, 94), recovery(4, "Drain and Reset")], ["reboot", "none"]),
        ([fault(HANG, 63), recovery(4, "Drain and Reset")], ["reboot", "none"]),
        ([fault(HANG, 94), recovery(5, "Recover IMEX Domain")], ["investigate", "none"]),
        ([fault(HANG, 63), recovery(5, "Recover IMEX Domain")], ["investigate", "none"]),
        ([fault(HANG, 79), recovery(0, "None")], ["reboot", "none"]),
        ([fault(HANG, 31), recovery(1)], ["fix-code", "none"]),
        ([fault(HANG, 54), recovery(1)], ["replace", "none"]),
        # … of its own GPU, and inside the burst
        ([fault(HANG, 94), recovery(2, pci=OTHER)], ["investigate", "none"]),
        ([fault(HANG, 94), recovery(2, at=HANG + 600)], ["investigate", "none"]),
        ([fault(HANG, 94), fault(HANG + 150, 63), recovery(2, at=HANG + 300)], ["reboot", "reboot", "none"]),
        # 74: sympathetic bits follow what stands beside them
        ([fault(HANG, 74, "NVLink: error on link 3(0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")], ["investigate"]),
        (
            [fault(HANG, 74, "NVLink: error on link 3(0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"), fault(HANG, 79, pci=OTHER)],
            ["none", "reboot"],
        ),
        ([fault(HANG, 74, "NVLink: error on link 3(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")], ["reboot"]),
        ([fault(HANG, 74)], ["reboot"]),
        # 145 XID_154_EVAL: what a 154 says, else the job is started again
        (
            [fault(HANG, 145, "RLW_REMAP Nonfatal XC0 i0 Link 3 (0x00000082 0x00000001 0x0 0x0)"), recovery(1)],
            ["reboot", "none"],
        ),
        ([fault(HANG, 145, "RLW_REMAP Nonfatal XC0 i0 Link 3 (0x00000082 0x00000001 0x0 0x0)")], ["none"]),
        ([fault(HANG, 999)], ["investigate"]),
    ],
    ids=lambda value: None,
)
def test_xids_beside_one_another(events: list[MachineEvent], expected: list[str]) -> None:
    assert [action for _, action in worth(*events)] == expected


@pytest.mark.parametrize(
    ("name", "text", "action", "hardware"),
    [
        ("gpu.remap-pending", "", "reboot", True),
        ("gpu.remapped-pending", "", "reboot", True),
        ("gpu.remap-failure", "", "replace", True),
        ("gpu.sram-threshold", "", "replace", True),
        ("gpu.ecc-uncorrected", "", "reboot", True),
        ("gpu.ecc-aggregate", "", "none", False),
        ("gpu.ecc-corrected", "", "none", False),
        ("gpu.missing", "", "reboot", True),
        ("gpu.nvlink-inactive", "", "investigate", False),
        ("gpu.pcie-width", "", "investigate", False),
        ("kernel.gpu-lost", "", "reboot", True),
        ("kernel.sxid", "", "reboot", True),
        ("kernel.sxid-nonfatal", "", "none", True),
        ("kernel.oom", "", "none", False),
        ("kernel.oom-cgroup", "", "none", False),
        ("kernel.lockup", "", "investigate", False),
        ("kernel.panic", "", "investigate", False),
        ("kernel.storage", "", "investigate", False),
        ("kernel.link-down", "", "network", False),
        ("kernel.machine-check", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "investigate", True),
        (
            "kernel.machine-check",
            "pcieport 0000:10:01.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x",
            "investigate",
            False,
        ),
        (
            "kernel.machine-check",
            "pcieport 0000:10:01.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",
            "investigate",
            True,
        ),
        ("gpu.count", "4 GPUs, Slurm has 8 for the node, and the machine never showed more", "investigate", False),
        ("gpu.count", "7 GPUs, Slurm has 8 for the node", "reboot", True),
        ("kernel.machine-check", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "investigate", False),
        ("kernel.mce", "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: ", "investigate", True),
        ("dcgm.isolate", "", "reboot", True),
        ("clock.unsynchronised", "", "investigate", False),
        ("something.new", "", "investigate", False),
    ],
)
def test_readings_and_lines(name: str, text: str, action: str, hardware: bool) -> None:
    event = MachineEvent(HANG, "fault", name, "kernel", text)
    (judged,) = judge([of_event(event)], default())
    assert (judged.action, judged.hardware) == (action, hardware)


def test_errors_of_one_link_are_counted_for_nvidias_report() -> None:
    words = "NVLink: error on link 3(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    days = [fault(HANG - 30 * 3600, 74, words), *(fault(HANG - hour * 3600, 74, words) for hour in (9, 5))]
    (alone,) = judge([of_event(fault(HANG, 74, words))], default())
    assert "report" not in alone.why
    (third,) = judge([of_event(fault(HANG, 74, words))], default(), of_machine(machine(*days)))
    assert third.why.endswith("3 times on this link: NVIDIA asks for a report")


def test_sram_threshold_of_last_month_stands_for_a_new_error_of_that_gpu() -> None:
    old = reading(HANG - 40 * DAY, "gpu.sram-threshold")
    assert next_step([of_event(fault(HANG, 48))], machine(old), default()).action == "replace"  # type: ignore[union-attr]
    elsewhere = next_step([of_event(fault(HANG, 48, pci=OTHER))], machine(old), default())
    assert elsewhere is not None and elsewhere.action == "reboot"
    another_class = next_step([of_event(fault(HANG, 79))], machine(old), default())
    assert another_class is not None and another_class.action == "reboot"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (fault(1, 79), fault(2, 79), True),
        (fault(1, 79), fault(2, 119), True),  # both are a GPU that is lost
        (fault(1, 79), fault(2, 48), False),
        (fault(1, 79), fault(2, 79, pci=OTHER), False),
        (fault(1, 79, pci="PCI:00000000:A1:00.0"), fault(2, 79), True),
        (fault(1, 79, uuid=UUID), fault(2, 79, uuid="GPU-11111111"), False),  # the board in that place was changed
        (fault(1, 79, uuid=UUID), fault(2, 79), True),
        (fault(1, 74, link=3), fault(2, 74, link=3), True),
        (fault(1, 74, link=3), fault(2, 74, link=4), False),
        (fault(1, 74, "NVLink: error on link 3(0x0)"), fault(2, 74, "NVLink: error on link 4(0x0)"), False),
        (fault(1, 74, link=3), fault(2, 74), True),
        (MachineEvent(1, "fault", "gpu.missing", "gpu", "", "gpu-hw-lost", data={"gpu": PCI}), fault(2, 79), True),
        (MachineEvent(1, "fault", "gpu.missing", "gpu", "", "gpu-hw-lost"), fault(2, 79), False),  # which GPU?
        (MachineEvent(1, "fault", "kernel.mce", "kernel"), MachineEvent(2, "fault", "kernel.mce", "kernel"), True),
        (MachineEvent(1, "fault", "kernel.mce", "kernel"), MachineEvent(2, "fault", "kernel.lockup", "kernel"), False),
    ],
    ids=lambda value: None,
)
def test_the_same_fault(one: MachineEvent, other: MachineEvent, expected: bool) -> None:
    first, second = (judge([of_event(event)], default())[0].fault for event in (one, other))
    assert same(first, second) is same(second, first) is expected


def test_a_uuid_and_a_bus_id_are_one_gpu_where_the_history_tells_both() -> None:
    by_uuid = of_event(MachineEvent(1, "fault", "gpu.missing", "gpu", "", "gpu-hw-lost", data={"gpu": UUID}))
    by_bus = of_event(fault(2, 79))
    known = of_machine(machine(reading(0, "gpu.remap-pending", uuid=UUID)))
    assert not same_gpu(by_uuid, by_bus)
    assert same_gpu(by_uuid, by_bus, known) and same_gpu(by_bus, by_uuid, known)
    changed = [*known, *of_machine(machine(reading(0, "gpu.remap-pending", uuid="GPU-22222222")))]
    assert not same_gpu(by_uuid, by_bus, changed)
