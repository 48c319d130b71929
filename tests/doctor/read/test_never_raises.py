"""Every reader takes any text: what a node says may be anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "smi": (smi.read, machines.smi_xml([Gpu("0000:a1:00"), Gpu("0000:a2:00", old=True)])),
    "nvlink status": (nvlink.status, machines.nvlink_status([Gpu("0000:a1:00")], 3, {0: (1,)})),
    "nvlink errors": (nvlink.errors, machines.nvlink_errors([Gpu("0000:a1:00")], 3)),
    "topology": (lambda text: topo.read(text).pairs(), machines.topology(3, "NV18")),
    "p2p": (topo.read_p2p, machines.p2p(3, "OK")),
    "dcgm": (dcgm.read, '{"body": {"Overall Health": {"value": "Healthy"}, "GPU": {"children": {"0": {}}}}}'),
    "dcgm box": (dcgm.read, "| Overall Health: Warning |\n| GPU ID: 3 | Warning |\n| | PCIe system: Warning - x |"),
    "lspci": (lspci.read, "00:01.0 PCI bridge: x\n\t\tACSCtl:\tSrcValid+ ReqRedir+"),
    "limits": (procfs.limits, machines.limits_text()),
    "meminfo": (procfs.meminfo, "MemTotal: 8 kB\nHugePages_Total: 4"),
    "modules": (procfs.modules, "efa 1 0 - Live 0x0"),
    "options": (procfs.options, "ro iommu=pt"),
    "driver": (procfs.driver, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  x"),
    "release": (procfs.kernel_release, "6.8.0-1021-aws"),
    "amount": (procfs.amount, "unlimited"),
    "fi_info": (lambda text: efa.domains(efa.providers(text)), machines.fi_info(2)),
    "installer version": (efa.installer_version, "# EFA installer version: 1.37.0"),
    "libraries": (lambda text: libraries.libraries(text.split("\n")), "/lib/libnccl.so.2.21.5 (deleted)\n/x"),
    "nft": (
        lambda text: firewall.stops(firewall.in_nft(text), 29500, "10.0.0.7"),
        "chain input {\ntype filter hook input priority 0; policy drop;\ntcp dport { 1, 2-3 } drop",
    ),
    "iptables": (
        lambda text: firewall.stops(firewall.in_iptables(text), 29500),
        "*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp --dport 1:2 -j DROP",
    ),
    "unit": (lambda text: services.is_active(services.show(text)), "LoadState=loaded\nActiveState=active"),
    "version": (services.version_in, "version is : 550.54.15"),
    "nccl-tests": (nccltests.read, "# Rank 0 Group 0 Pid 1 on n1 device 0 [0x1]\n 8 2 float sum -1 1 2 3 0 1 2 3 0"),
    "ports": (lambda text: ports.devices(_files("/sys/class/infiniband/mlx5_0/", text)), "ports/1/state=4: ACTIVE"),
    "pci": (lambda text: pci.functions(_files("/sys/bus/pci/devices/0000:a1:00.0/", text)), "vendor=0x10de\nclass=0x3"),
    "netdev": (lambda text: netdev.interfaces(_files("/sys/class/net/eth0/", text)), "mtu=9001\noperstate=up"),
}


def _files(base: str, text: str) -> dict[str, str]:
    return {base + name: value for name, _, value in (line.partition("=") for line in text.split("\n"))}


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text(name: str, text: str) -> None:
    READERS[name][0](text)


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_real_text_with_a_hole_or_junk_in_it(name: str, data: st.DataObject) -> None:
    read, sample = READERS[name]
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, len(sample)))
    junk = data.draw(st.text(max_size=20) | st.sampled_from(["9" * 30, "\x00", "²", "٣", "-1", "1e999", "<", "{", ","]))
    read(sample[:start] + junk + sample[end:])


@pytest.mark.parametrize("name", sorted(READERS))
def test_the_sample_says_something(name: str) -> None:
    read, sample = READERS[name]
    assert read(sample) not in (None, [], {}, set(), frozenset())
