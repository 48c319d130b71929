"""PCIe, ACS, IOMMU, GPUDirect, NUMA: each both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.doctor.check import judged
from tests.doctor import machines
from tests.doctor.machines import Machine, check, findings, of, worst

Change = Callable[[Machine], object]
RDMA = "/sys/class/infiniband"


def link(slot: str, width: str, width_max: str = "16") -> Change:
    base = f"/sys/bus/pci/devices/{slot}"
    return lambda m: m.files.update({f"{base}/current_link_width": width, f"{base}/max_link_width": width_max})


def device(slot: str, number: str) -> Change:
    return lambda m: m.files.update({f"/sys/bus/pci/devices/{slot}/device": f"{number}\n"})


def both(*changes: Change) -> Change:
    return lambda m: [change(m) for change in changes]


def alone(machine: Machine) -> None:
    """One GPU and its card, in a machine of a type that is not known."""
    del machine.gpus[1:]
    machine.files["/sys/devices/virtual/dmi/id/product_name"] = "g5.xlarge\n"
    machine.without(*(f"/sys/bus/pci/devices/{machines.bus(number)}" for number in range(1, 8)))


def card(number: int, rate: str = "200 Gb/sec (4X HDR)", layer: str = "Ethernet", pci: str = "0x1021") -> Change:
    return lambda m: machines._card(m, f"mlx5_{number}", 0x60 + number, "mlx5_core", "0x15b3", pci, rate, layer)


def small(machine: Machine) -> None:
    """A board of fewer lanes beside larger ones."""
    machine.gpu(3, width="8x", width_max="8x")


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        ("p5", lambda m: None, "PASS", "have all their lanes"),
        pytest.param(
            "p5", lambda m: m.gpu(3, width="8x"), "FAIL P1", "8 lanes, where 16 belong", id="W14: half a link"
        ),
        ("p5", lambda m: m.gpu(3, width="8x", width_max="8x"), "FAIL P1", "8 lanes, where 16 belong"),
        ("g5", lambda m: m.every_gpu(width="8x"), "WARN P2", "8 of 16 lanes, all alike"),
        ("p5", lambda m: m.gpu(3, gen="1"), "PASS", "have all their lanes"),  # an idle GPU saves power
        ("p5", lambda m: m.gpu(3, gen="3", throttle=()), "WARN P1", "generation 3 of 5 under load"),
        ("p5", link("0000:61:00.0", "8"), "FAIL P1", "efa 0000:61:00.0"),
        ("infiniband", link("0000:61:00.0", "4"), "FAIL P1", "mlx5_core 0000:61:00.0"),
        (
            "infiniband",
            link("0000:61:00.0", "8", "8"),
            "PASS",
            "have all their lanes",
        ),  # a card for storage, of another kind
        ("infiniband", lambda m: [link(f"0000:{n:x}:00.0", "8")(m) for n in range(0x60, 0x68)], "WARN P2", "all alike"),
        ("infiniband", both(link("0000:67:00.0", "8"), device("0000:67:00.0", "0x1019")), "WARN P2", "no like board"),
        ("infiniband", both(link("0000:67:00.0", "16"), device("0000:67:00.0", "0x1019")), "PASS", "all their lanes"),
        ("g5", both(alone, lambda m: m.gpu(0, width="8x", gen="1")), "WARN P2", "8 of 16 lanes, and no like board"),
        ("g5", alone, "PASS", "have all their lanes"),
        ("p5", both(small, device(f"{machines.bus(3)}.0", "0x25b6")), "PASS", "have all their lanes"),
        ("p5", link("0000:61:00.0", "0", "255"), "PASS", "have all their lanes"),  # a virtual function tells none
        (
            "p5",
            lambda m: m.every_gpu(width="N/A").without("/sys/bus/pci/devices/0000:6"),
            "PASS",
            "have all their lanes",
        ),
        pytest.param(
            "infiniband", both(card(8), link("0000:68:00.0", "8")), "WARN P2", "no like board", id="for Ethernet"
        ),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no GPU and no RDMA card"),
    ],
)
def test_links(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.pcie", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(("lanes", "expected"), [("8", "PASS"), ("16", "FAIL P1"), ("0", "FAIL P1")])
def test_a_slot_may_have_fewer_lanes_than_its_card(lanes: str, expected: str, tmp_path: Path) -> None:
    """As the bridge above tells, where it does."""
    machine, one = of("infiniband"), check("node.pcie")
    link("0000:61:00.0", "8")(machine)
    machine.files.update(machines._function("/sys/bus/pci/devices/0000:60:1f.0", "0x8086", "0x060400", "0x352a"))
    link("0000:60:1f.0", "8", lanes)(machine)
    seen = machine.look(tmp_path, one.sources)
    paths = {"/sys/bus/pci/devices/0000:61:00.0": "../../../devices/pci0000:60/0000:60:1f.0/0000:61:00.0"}
    found = judged(one, replace(seen, found={**seen.found, "pci-paths": {"texts": paths}}))
    assert worst(found) == expected


def test_widths_of_a_dead_driver_are_read_from_the_kernel(tmp_path: Path) -> None:
    machine = of("p5").says("nvidia-smi", "no", 9)
    link(f"{machines.bus(2)}.0", "4")(machine)
    (found,) = findings(machine, "node.pcie", tmp_path)
    assert found.status == "FAIL" and f"{machines.bus(2)}.0" in found.text


BRIDGE = """{slot} PCI bridge: Broadcom PEX890xx PCIe Gen 5 Switch (prog-if 00 [Normal decode])
\tBus: primary=00, secondary={first}, subordinate={last}, sec-latency=0
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\t{control}
10:1c.0 3D controller: NVIDIA Corporation GH100
"""
OFF = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
ON = OFF.replace("SrcValid-", "SrcValid+").replace("ReqRedir-", "ReqRedir+")
CARD = f"""60:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tCapabilities: [230 v1] Access Control Services
\t\tACSCtl:\t{ON}
"""


def bridge(control: str, first: str = "0f", last: str = "12", slot: str = "00:01.0") -> str:
    """By default above GPUs 0 to 2."""
    return BRIDGE.format(slot=slot, control=control, first=first, last=last)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bridge(OFF), "PASS"),
        (bridge(ON), "WARN P1"),
        (bridge(OFF.replace("CmpltRedir-", "CmpltRedir+")), "WARN P1"),
        (bridge(OFF.replace("SrcValid-", "SrcValid+")), "WARN P2"),
        (bridge(ON, "60", "60"), "WARN P1"),  # a card is below
        (bridge(ON, "01", "02", "00:1c.0"), "PASS"),  # a chipset's port, with USB below
        (bridge(OFF.replace("SrcValid-", "SrcValid+"), "01", "02"), "PASS"),
        (bridge(ON, slot="0000:00:01.0"), "WARN P1"),
        (bridge(ON, slot="0001:00:01.0"), "PASS"),  # buses of another domain
        (bridge(ON, "01", "02") + bridge(ON), "WARN P1"),
        (bridge(ON).replace("\tBus:", "\tBuses:"), "WARN P1"),
        (CARD, "PASS"),
        (bridge(OFF) + CARD, "PASS"),
        ("00:01.0 PCI bridge: Broadcom PEX890xx\n\tCapabilities: <access denied>\n", "UNKNOWN"),
        ("00:01.0 PCI bridge: Broadcom PEX890xx\n", "PASS"),
        ("", "UNKNOWN"),
    ],
)
def test_acs(text: str, expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("infiniband").says("lspci", text), "node.acs", tmp_path)) == expected


def test_of_bridges_those_are_told_that_are_above_something(tmp_path: Path) -> None:
    text = bridge(ON, "01", "02", "00:1c.0") + bridge(ON) + CARD
    (found,) = findings(of("infiniband").says("lspci", text), "node.acs", tmp_path)
    assert found.text.startswith("1 PCI bridges above GPUs") and found.values["bridge"] == "00:01.0"


def test_where_the_bus_can_not_be_read_any_bridge_counts(tmp_path: Path) -> None:
    machine = of("infiniband").says("lspci", bridge(ON, "01", "02")).without("/sys/bus/pci/devices")
    assert worst(findings(machine, "node.acs", tmp_path)) == "WARN P1"


def unit(machine: Machine) -> None:
    machine.files["/sys/class/iommu/dmar0/.keep"] = ""


@pytest.mark.parametrize(
    ("unit_there", "options", "line", "expected"),
    [
        (False, "ro", "", "PASS"),
        (True, "ro intel_iommu=on", "", "WARN P1"),
        (True, "ro intel_iommu=on iommu=pt", "", "PASS"),
        (True, "ro iommu.passthrough=1", "", "PASS"),
        pytest.param(
            True, "ro", "iommu: Default domain type: Passthrough", "PASS", id="W31: passed through by default"
        ),
        (True, "ro", "iommu: Default domain type: Translated", "WARN P1"),
        (True, "ro", "", "WARN P1"),
        pytest.param(False, "ro", "DMAR: IOMMU enabled", "PASS", id="W31: words without a unit"),
    ],
)
def test_iommu(unit_there: bool, options: str, line: str, expected: str, tmp_path: Path) -> None:
    machine = of("infiniband").kernel(line)
    machine.files["/proc/cmdline"] = options + "\n"
    if unit_there:
        unit(machine)
    assert worst(findings(machine, "node.iommu", tmp_path)) == expected


def peer(word: str | None) -> Change:
    def change(machine: Machine) -> None:
        for path in [path for path in machine.files if path.endswith("/device/p2p")]:
            if word is None:
                del machine.files[path]
            else:
                machine.files[path] = word + "\n"

    return change


SLOW, FAST = "25 Gb/sec (1X EDR)", "200 Gb/sec (4X HDR)"


def bare(machine: Machine) -> None:
    """No RDMA card, and a driver that does not share its pages by itself."""
    machine.without(RDMA, *(f"/sys/bus/pci/devices/0000:{0x60 + number:02x}" for number in range(8)))
    kernel("6.8.0", CLOSED)(machine)


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24\n"


def kernel(release: str, driver: str | None = None, modules: str = "nvidia 1 0 - Live 0x0") -> Change:
    def change(machine: Machine) -> None:
        peer(None)(machine)
        machine.files.update({"/proc/sys/kernel/osrelease": release + "\n", "/proc/modules": modules + "\n"})
        if driver is not None:
            machine.files["/proc/driver/nvidia/version"] = driver

    return change


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("p5", lambda m: None, "PASS"),
        ("p5", peer("NVIDIA peermem"), "PASS"),
        ("g5", peer(""), "NOT-APPLICABLE"),
        ("p5", peer(""), "FAIL P1"),
        ("p5", peer("NEURON"), "FAIL P1"),
        ("infiniband", kernel("6.8.0"), "PASS"),
        ("infiniband", kernel("6.8.0", CLOSED), "WARN P1"),
        ("infiniband", kernel("5.10.0"), "WARN P1"),
        ("infiniband", kernel("5.4.0", CLOSED, "nvidia_peermem 1 0 - Live 0x0"), "PASS"),
        ("infiniband", kernel("5.4.0", CLOSED, "nv_peer_mem 1 0 - Live 0x0"), "PASS"),
        ("infiniband", kernel("6.8.0", "junk"), "UNKNOWN"),
        pytest.param("infiniband", both(bare, card(0, SLOW)), "NOT-APPLICABLE", id="for administration"),
        pytest.param("infiniband", both(bare, card(0, FAST, pci="0x101a")), "NOT-APPLICABLE", id="a guest's own"),
        pytest.param("infiniband", both(bare, card(0, FAST)), "WARN P2", id="one, which may be for administration"),
        ("infiniband", both(bare, card(0, FAST), card(1, FAST)), "WARN P1"),
        ("infiniband", both(bare, card(0, FAST, pci="0x101e"), card(1, FAST, pci="0x101e")), "WARN P1"),
        ("infiniband", both(bare, card(0, SLOW), card(1, SLOW, "InfiniBand")), "WARN P1"),
        pytest.param("infiniband", both(bare, card(0, ""), card(1, "")), "WARN P1", id="rates that are not told"),
        ("plain", lambda m: None, "NOT-APPLICABLE"),
    ],
)
def test_peermem(kind: str, change: Change, expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    assert worst(findings(machine, "node.peermem", tmp_path)) == expected


def test_memory_of_each_processor(tmp_path: Path) -> None:
    machine = of("p5")
    machine.files["/sys/devices/system/node/node1/meminfo"] = "Node 1 MemTotal:       0 kB\n"
    assert worst(findings(machine, "node.numa", tmp_path)) == "WARN P1"


def test_a_node_of_memory_alone_is_none_without_memory(tmp_path: Path) -> None:
    machine = of("p5")
    machine.files["/sys/devices/system/node/node2/cpulist"] = "\n"
    machine.files["/sys/devices/system/node/node2/meminfo"] = "Node 2 MemTotal:       0 kB\n"
    (found,) = findings(machine, "node.numa", tmp_path)
    assert found.status == "PASS" and found.text.startswith("2 NUMA nodes, each with memory; 1 of neither")


def test_gpus_that_are_near_nobody(tmp_path: Path) -> None:
    machine = of("p5")
    for number in range(8):
        machine.files[f"/sys/bus/pci/devices/{machines.bus(number)}.0/numa_node"] = "-1\n"
    assert worst(findings(machine, "node.numa", tmp_path)) == "WARN P2"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [({"1": "identity"}, "PASS"), ({"1": "DMA"}, "WARN P1"), ({"1": "DMA-FQ"}, "WARN P1"), ({}, "UNKNOWN")],
)
def test_the_groups_of_gpus_tell_where_the_log_does_not(kinds: dict[str, str], expected: str, tmp_path: Path) -> None:
    machine = of("infiniband")
    machine.commands["journalctl"] = "exit 1"
    unit(machine)
    for number in range(8):
        machine.links[f"/sys/bus/pci/devices/{machines.bus(number)}.0/iommu_group"] = "../../../kernel/iommu_groups/1"
    for group, word in {**kinds, "2": "DMA"}.items() if kinds else ():
        machine.files[f"/sys/kernel/iommu_groups/{group}/type"] = word + "\n"
    assert worst(findings(machine, "node.iommu", tmp_path)) == expected


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA GH200 480GB", "PASS"), ("NVIDIA H100", "WARN P1")])
def test_the_smmu_of_grace_is_meant(name: str, expected: str, tmp_path: Path) -> None:
    machine = of("infiniband").every_gpu(name=name)
    unit(machine)
    assert worst(findings(machine, "node.iommu", tmp_path)) == expected
