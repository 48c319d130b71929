"""Forms of real output, by version of the program, and what is read from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nccl_slurm.doctor.read import (
    dcgm,
    efa,
    firewall,
    libraries,
    lspci,
    nccltests,
    netdev,
    nvlink,
    pci,
    ports,
    procfs,
    services,
    smi,
    topo,
)
from tests.doctor import machines
from tests.doctor.machines import Gpu


def one(**changes: Any) -> smi.Gpu:
    found = smi.read(machines.smi_xml([Gpu("0000:a1:00", **changes)])).gpus
    assert found is not None
    return found[0]


def test_a_gpu_whole() -> None:
    read = one(volatile="3", throttle=("hw_slowdown",))
    assert (read.bus, read.name, read.volatile, read.aggregate) == ("0000:a1:00", "NVIDIA H100 80GB HBM3", 3, 0)
    assert (read.gen, read.gen_max, read.width, read.width_max) == (5, 5, 16, 16)
    assert (read.clock, read.clock_max, read.temperature) == (1980, 1980, 35)
    assert (read.power_limit, read.power_default) == (700.0, 700.0)
    assert (read.throttle, read.fabric, read.mig) == (("hw_slowdown",), ("Completed", "Success"), False)
    assert (read.persistence, read.vbios, read.ecc, read.recovery) == (True, "96.00.89.00.01", "Enabled", "None")


@pytest.mark.parametrize("old", [True, False])
def test_names_before_driver_535(old: bool) -> None:
    read = one(old=old, power="400.00 W")
    assert read.power_limit == 400.0 and read.throttle == ("gpu_idle",)


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "ERR!", "", "[Unknown Error]", "-3 C"])
def test_what_is_no_value_is_none(word: str) -> None:
    read = one(temperature=word, width=word, power=word, gen=word)
    assert (read.temperature, read.width, read.power_limit, read.gen) == (None, None, None, None)


def test_versions_of_driver_and_cuda() -> None:
    read = smi.read(machines.smi_xml([Gpu("0000:a1:00")], "580.65.06"))
    assert (read.driver, read.cuda) == ("580.65.06", "12.8")


@pytest.mark.parametrize(
    ("text", "active", "inactive"),
    [
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s", 2, ()),
        ("GPU 0: NVIDIA A100 (UUID: GPU-a)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>", 1, (1,)),
        ("GPU 0: NVIDIA A100 (UUID: GPU-a)\n\t Link 0: Inactive\n\t Link 1: Off", 0, (0, 1)),
        ("GPU 0: NVIDIA L4 (UUID: GPU-a)\nUnable to retrieve NVLink information as all links are inActive", 0, ()),
        ("GPU 00000008:06:00.0: NVIDIA GB200\n     Link 0: 50 GB/s", 1, ()),
    ],
)
def test_links(text: str, active: int, inactive: tuple[int, ...]) -> None:
    (found,) = nvlink.status(text).values()
    assert (found.active, found.inactive) == (active, inactive)


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("Link 0: Replay Errors: 5", True),
        ("Link 0: CRC Errors: 5", True),
        ("Link 0: Rx Errors: 5", True),
        ("Link 0: Link recovery failed events: 5", True),
        ("Link 0: Symbol Errors: 5", True),
        ("Link 0: Tx packets: 5", False),
        ("Link 0: FEC Errors - 0: 5", False),
        ("Link 0: PLR Xmit Blocks: 5", False),
        ("Link 0: Symbol BER: 1e-15", False),
        ("Link 0: CRC Errors: 0", False),
        ("Links 0-2: Replay Errors: 5", False),
    ],
)
def test_error_counters(line: str, counted: bool) -> None:
    found = nvlink.errors(f"GPU 0: NVIDIA (UUID: GPU-a)\n\t {line}")["0"]
    assert bool(found.counts) is counted


def test_topology_with_escapes_and_nics() -> None:
    found = topo.read(machines.topology(4, "NV18", {(0, 3): "SYS"}))
    assert found.gpus == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert found.pairs()["GPU0", "GPU3"] == "SYS" and found.pairs()["GPU1", "GPU2"] == "NV18"
    assert found.paths["GPU0"]["NIC1"] == "NODE"


def test_topology_of_older_drivers_names_nics_by_device() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
        "GPU0\t X \tNV12\tPXB\t0-31\n"
        "GPU1\tNV12\t X \tPXB\t0-31\n"
        "mlx5_0\tPXB\tPXB\t X \t\n"
    )
    found = topo.read(text)
    assert found.pairs() == {("GPU0", "GPU1"): "NV12"} and found.paths["GPU0"]["mlx5_0"] == "PXB"


def test_p2p_matrix() -> None:
    assert topo.read_p2p(machines.p2p(3, "OK", {(0, 2): "CNS"})) == {
        ("GPU0", "GPU1"): "OK",
        ("GPU0", "GPU2"): "CNS",
        ("GPU1", "GPU2"): "OK",
    }


OLD_BOX = """Health Monitor Report
+------------------+---------------------------------------------------------+
| Overall Health: Warning                                                    |
+==================+=========================================================+
| GPU ID: 3        | Warning                                                 |
|                  | PCIe system: Warning - Detected more than 8 PCIe        |
|                  | replays per minute for GPU 3: 13                        |
+------------------+---------------------------------------------------------+"""


def test_health_of_dcgm_2() -> None:
    found = dcgm.read(OLD_BOX)
    assert found.overall == "Warning"
    assert [(one.where, one.system, one.word) for one in found.incidents] == [("GPU 3", "PCIe system", "Warning")]


def test_health_of_dcgm_4() -> None:
    body = {"Overall Health": {"value": "Failure"}}
    body["GPU"] = {"children": {"0": {"children": {"Errors": {"children": {"SM system": {"value": "Failure"}}}}}}}  # type: ignore[dict-item]
    found = dcgm.read(json.dumps({"body": body, "header": ["Health Monitor Report"]}))
    assert found.overall == "Failure"
    assert [(one.where, one.system) for one in found.incidents] == [("GPU 0", "SM system")]


@pytest.mark.parametrize("direct", [True, False])
def test_domains_are_cards(direct: bool) -> None:
    found = efa.providers(machines.fi_info(16, direct))
    assert len(found) == (48 if direct else 32)
    assert len(efa.domains(found)) == 16


def test_other_providers_are_none_of_efa() -> None:
    text = "provider: tcp\n    fabric: 10.0.0.0/16\n    domain: eth0\n    version: 118.0\n    type: FI_EP_MSG"
    assert efa.domains(efa.providers(text)) == set()


@pytest.mark.parametrize(
    ("text", "version"),
    [("# EFA installer version: 1.37.0\n# Debug packages installed: no", "1.37.0"), ("no", None)],
)
def test_installer(text: str, version: str | None) -> None:
    assert efa.installer_version(text) == version


@pytest.mark.parametrize(
    ("path", "kind", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5", "nccl", "2.21.5"),
        ("/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", "nccl", None),
        ("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", "ofi-plugin", None),
        ("/opt/aws-ofi-nccl/lib/libnccl-net.so.0.0.0", "ofi-plugin", "0.0.0"),
        ("/usr/lib/libnccl-net-ofi.so", "ofi-plugin", None),
        ("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0", "net-plugin", "0.0.0"),
        ("/opt/amazon/efa/lib/libfabric.so.1.27.0", "libfabric", "1.27.0"),
        ("/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127", "cudart", "12.4.127"),
        ("/usr/lib/libc.so.6", None, None),
    ],
)
def test_libraries(path: str, kind: str | None, version: str | None) -> None:
    found = libraries.libraries([path])
    assert [(one.kind, one.version) for one in found] == ([] if kind is None else [(kind, version)])


def test_a_library_that_was_replaced() -> None:
    (found,) = libraries.libraries(["/lib/libnccl.so.2.18.3 (deleted)"])
    assert found.deleted and found.path == "/lib/libnccl.so.2.18.3" and found.version == "2.18.3"


def test_access_control_is_denied_to_users() -> None:
    assert lspci.read("00:01.0 PCI bridge: x\n\tCapabilities: <access denied>\n").denied


def test_pci_functions() -> None:
    base = "/sys/bus/pci/devices/0000:a1:00.0"
    files = {f"{base}/vendor": "0x10de\n", f"{base}/class": "0x030200\n", f"{base}/current_link_width": "8\n"}
    (found,) = pci.functions(files, {f"{base}/driver": "../../../../bus/pci/drivers/nvidia"})
    assert (found.vendor, found.kind, found.driver, found.width) == ("10de", "0302", "nvidia", 8)
    assert pci.gpus([found]) == [found] and pci.efas([found]) == []


def test_rdma_devices() -> None:
    base = "/sys/class/infiniband/rdmap16s0"
    files = {f"{base}/ports/1/state": "4: ACTIVE\n", f"{base}/ports/1/hw_counters/rx_drops": "7\n"}
    files |= {f"{base}/device/driver": "../efa", f"{base}/fw_ver": "0.0.0.0\n", f"{base}/hw_counters/lifespan": "12\n"}
    files[f"{base}/device/uevent"] = (
        "DRIVER=efa\nPCI_ID=1D0F:EFA2\nPCI_SUBSYS_ID=1D0F:EFA2\nPCI_SLOT_NAME=0000:10:00.0\n"
    )
    (found,) = ports.devices(files)
    assert found.efa and found.ports[0].state == "ACTIVE"
    assert found.counters == {"ports/1/hw_counters/rx_drops": 7, "hw_counters/lifespan": 12}
    assert (found.model, found.slot) == ("1D0F:EFA2 1D0F:EFA2", "0000:10:00.0")


def test_interfaces_of_real_devices() -> None:
    files = {"/sys/class/net/eth0/mtu": "9001\n", "/sys/class/net/eth0/device/driver": "../ena"}
    files |= {"/sys/class/net/eth0/statistics/rx_errors": "3\n", "/sys/class/net/lo/mtu": "65536\n"}
    found = {one.name: one for one in netdev.interfaces(files)}
    assert (found["eth0"].mtu, found["eth0"].driver, found["eth0"].statistics) == (9001, "ena", {"rx_errors": 3})
    assert found["lo"].driver is None


@pytest.mark.parametrize(
    ("word", "value"),
    [("unlimited", procfs.UNLIMITED), ("65536", 65536.0), ("infinity", procfs.UNLIMITED), ("x", None), ("", None)],
)
def test_amounts(word: str, value: float | None) -> None:
    assert procfs.amount(word) == value
    assert procfs.amount(str(1 << 63)) == procfs.UNLIMITED


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build", "570.133.20", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24", "535.161.08", False),
        ("junk", None, None),
    ],
)
def test_driver(text: str, version: str | None, is_open: bool | None) -> None:
    found = procfs.driver(text)
    assert (found and found.version, found and found.open) == (version, is_open)


def test_kernel_files() -> None:
    assert procfs.options("a=b ro iommu=pt x=") == {"a": "b", "ro": "", "iommu": "pt", "x": ""}
    assert procfs.modules("efa 1 0 - Live 0x0\nib_core 2 1 efa, Live 0x0") == {"efa", "ib_core"}
    assert procfs.meminfo("MemTotal: 8 kB\nHugePages_Total: 4") == {"MemTotal": 8192, "HugePages_Total": 4}
    assert procfs.kernel_release("5.15.0-1062-aws") == (5, 15) and procfs.kernel_release("x") is None


def test_units() -> None:
    values = services.show("LoadState=loaded\nActiveState=active")
    assert services.is_active(values) is True and not services.is_absent(values)
    assert services.is_active(services.show("LoadState=not-found\nActiveState=inactive")) is None
    assert services.version_in("Fabric Manager version is : 550.54.15") == "550.54.15"


def test_rules_of_the_firewall() -> None:
    rules = firewall.in_iptables("-A INPUT -p tcp -m multiport --dports 22,29400:29500 -j REJECT")
    assert rules.rules("INPUT")[0].ports == ((22, 22), (29400, 29500))
    assert firewall.stops(rules, 29450) and not firewall.stops(rules, 23)
    assert not firewall.stops(firewall.in_iptables("*nat\n-A INPUT -j DROP\n"), 23)
    assert not firewall.stops(firewall.in_nft("chain x {\n tcp dport 22 drop\n}"), 22)


def test_rules_that_go_round_are_walked_for_a_time() -> None:
    lines = [f"-A {name} -s 10.0.0.0/8 -j {other}" for name in "AB" for other in "AB" for _ in range(20)]
    rules = firewall.in_iptables("\n".join([":INPUT ACCEPT [0:0]", "-A INPUT -j A", *lines]))
    assert [one.sure for one in firewall.stops(rules, 29500)] == [False]


HEAD = """# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on  ip-10-1-2-3 device  0 [0x10] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4712 on  ip-10-1-2-4 device  0 [0000:20:1c] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
TAIL = "# Out of bounds values : {wrong} {word}\n# Avg bus bandwidth    : 47.4509 \n#\n"


@pytest.mark.parametrize(
    ("line", "size", "algbw", "busbw"),
    [
        (" 1073741824 268435456 float sum -1 22661 47.38 88.38 0 22658 47.39 88.39 0", 1 << 30, 47.39, 88.39),
        (" 1073741824 268435456 float none 0 22661 47.38 47.40 0 22658 47.39 47.30 0", 1 << 30, 47.38, 47.40),
        (" 1073741824 268435456 float sum 22661 47.38 88.38 N/A 22658 47.39 88.39 N/A", 1 << 30, 47.39, 88.39),
        (" 34359738368 8589934592 float sum -1 875713 39.24 68.66 0", 1 << 35, 39.24, 68.66),
        (" 1073741824 268435456 float sum -1 22661 47.38 88.38 N/A 22658 47.39 88.31 N/A", 1 << 30, 47.38, 88.38),
        (" 1073741824 268435456 float sum -1 22661 47.38 88.38 0e+00 22658 47.39 88.31 0e+00", 1 << 30, 47.38, 88.38),
    ],
)
@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>:"])
def test_lines_of_nccl_tests(line: str, size: int, algbw: float, busbw: float, label: str) -> None:
    text = HEAD + line + "\n" + TAIL.format(wrong=0, word="OK")
    (found,) = nccltests.read("".join(label + one + "\n" for one in text.splitlines()))
    assert found.largest is not None
    assert (found.largest.size, found.largest.algbw, found.largest.busbw) == (size, algbw, busbw)
    assert (found.hosts, found.ranks) == (("ip-10-1-2-3", "ip-10-1-2-4"), 2)
    assert found.average == 47.4509 and found.wrong == 0 and found.whole


def test_a_run_that_broke_off() -> None:
    (found,) = nccltests.read(HEAD + " 1073741824 268435456 float sum -1 22661 47.38 88.38 0 22658 47.39 88.39 0\n")
    assert not found.whole and found.wrong is None


PARAMETERS = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n"
VERSION = "# nccl-tests version 2.17.6 nccl-headers=22703 nccl-library=22703\n"
STARTING, CONCLUDED = "# Collective test starting: {}_perf\n", "#\n# Collective test concluded: {}_perf\n#\n"
BODY = "#  Rank  0 Group  0 Pid   4711 on n1 device  0 [0000:10:1c] NVIDIA H100\n 8 2 float sum -1 1 2 {} 0 1 2 {} 0\n"


def old_run(name: str, busbw: int, tail: str = TAIL.format(wrong=0, word="OK")) -> str:
    """Named by the shell's trace alone."""
    return f"+ srun ./build/{name}_perf -b 8\n{PARAMETERS}{BODY.format(busbw, busbw)}{tail}"


def new_run(name: str, busbw: int, tail: str = TAIL.format(wrong=0, word="OK")) -> str:
    head = VERSION + STARTING.format(name) + PARAMETERS
    return head + BODY.format(busbw, busbw) + tail + (CONCLUDED.format(name) if tail else "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (new_run("all_reduce", 400) + new_run("all_gather", 40), [("all_reduce", 400, True), ("all_gather", 40, True)]),
        (old_run("all_reduce", 400) + old_run("alltoall", 40), [("all_reduce", 400, True), ("alltoall", 40, True)]),
        (
            new_run("all_reduce", 400, "") + new_run("all_gather", 40),
            [("all_reduce", 400, False), ("all_gather", 40, True)],
        ),
        (
            new_run("all_reduce", 400) + new_run("all_gather", 40, ""),
            [("all_reduce", 400, True), ("all_gather", 40, False)],
        ),
        (
            new_run("all_reduce", 400) + VERSION + STARTING.format("alltoall") + PARAMETERS,
            [("all_reduce", 400, True), ("alltoall", None, False)],
        ),
        (
            PARAMETERS + STARTING.format("all_gather") + BODY.format(7, 7) + TAIL.format(wrong=0, word="OK"),
            [("all_gather", 7, True)],
        ),
    ],
)
def test_several_runs_in_one_file(text: str, expected: list[tuple[str, int | None, bool]]) -> None:
    found = nccltests.read(text)
    assert [(one.test, one.largest and one.largest.busbw, one.whole) for one in found] == expected


@pytest.mark.parametrize("text", ["", "epoch 3 loss 2.1", "NCCL INFO Bootstrap"])
def test_what_is_no_such_output(text: str) -> None:
    assert nccltests.read(text) == []
