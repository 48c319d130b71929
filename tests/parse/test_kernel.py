from __future__ import annotations

import pytest

from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.xid import pci_id
from tests.parse.conftest import Read, one, source

XID = "NVRM: Xid (PCI:0000:a1:00): "


@pytest.mark.parametrize(
    ("line", "role", "hint", "data"),
    [
        (XID + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "cause", "gpu-hw-lost", {"xid": 79}),
        (XID + "79, GPU has fallen off the bus.", "cause", "gpu-hw-lost", {"xid": 79, "pci": "0000:a1:00"}),
        ("NVRM: Xid (0000:a1:00): 48, pid=7, name=py, DBE", "cause", "gpu-hw-ecc", {"xid": 48, "pid": 7}),
        (
            "NVRM: Xid (PCI:00000000:A1:00.0): 94, pid=7, name=a,b, Contained: x",
            "cause",
            "gpu-hw-ecc",
            {"name": "a,b", "pci": "0000:a1:00"},
        ),
        (XID + "43, pid=7, name=py, Ch 00000001", "consequence", "gpu-app-fault", {"xid": 43}),
        (
            XID + "45, pid=7, name=py, Ch 1 caused by previous Xid 149",
            "consequence",
            "nvlink-fabric",
            {"previous_xid": 149},
        ),
        (XID + "63, pid=7, name=py, Row Remapper: x", "context", "gpu-hw-ecc", {}),
        (
            XID + "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1 0x2)",
            "context",
            "nvlink-fabric",
            {"link": 13, "severity": "Nonfatal"},
        ),
        (
            XID + "149, NETIR_LINK_EVT Fatal XC0 i0 Link -1 (0x1 0x2)",
            "cause",
            "nvlink-fabric",
            {"link": -1, "severity": "Fatal"},
        ),
        (
            XID + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            "consequence",
            None,
            {"recovery": 2, "recovery_text": "Node Reboot Required"},
        ),
        (XID + "38, Fw halted", "context", None, {"xid": 38}),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Non-fatal, Link 30 x",
            "context",
            "nvlink-fabric",
            {"sxid": 20034},
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 12028, Fatal, Link 30 x",
            "cause",
            "nvlink-fabric",
            {"pci": "0000:87:00"},
        ),
        (
            "Out of memory: Killed process 812 (python) total-vm:1kB",
            "cause",
            "host-oom",
            {"pid": 812, "name": "python"},
        ),
        ("Memory cgroup out of memory: Killed process 812 (python) x", "cause", "host-oom", {"pid": 812}),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", "cause", "net-ib-transport", {"device": "mlx5_5"}),
        ("INFO: task python:812 blocked for more than 120 seconds.", "context", "storage-stall", {"seconds": 120}),
        ("mce: [Hardware Error]: Machine check events logged", "context", None, {}),
    ],
)
def test_one_line(rows: Rows, line: str, role: str, hint: str | None, data: dict[str, object]) -> None:
    facts = kernel_facts([(5.0, line), (6.0, "eth0: renamed")], "n1", rows)
    assert len(facts) == 1
    fact = facts[0]
    assert (fact.role, fact.hint, fact.trust, fact.host, fact.time, fact.producer) == (
        role,
        hint,
        "root",
        "n1",
        5.0,
        "kernel",
    )
    assert {key: fact.data.get(key) for key in data} == data


def test_a_lost_gpu_without_an_xid_is_three_lines(rows: Rows) -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    facts = kernel_facts([(None, line) for line in lines], "n1", rows)
    assert [(fact.kind, fact.data) for fact in facts] == [("kernel.gpu-lost", {"pci": "0000:b3:00"})]
    assert facts[0].uncertainty_s is None


def test_what_a_job_prints_stays_of_trust_job(read: Read) -> None:
    parsed = read(("slurm-1.out", XID + "79, GPU has fallen off the bus.\n"))
    assert one(parsed, "kernel.xid").trust == "job"
    parsed = read(source("kern.log", f"Feb 14 05:03:41 n7 kernel: {XID}79, x\n", host="n7", trust="root"))
    fact = one(parsed, "kernel.xid")
    assert (fact.trust, fact.host) == ("root", "n7")
    assert fact.time is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PCI:0000:3B:00.0", "0000:3b:00"),
        ("00000000:3b:00", "0000:3b:00"),
        ("3b:00.0", "0000:3b:00"),
        ("0003:00:00", "0003:00:00"),
        ("...", None),
        ("'; DROP TABLE nodes", None),
    ],
)
def test_pci_ids_have_one_spelling(text: str, expected: str | None) -> None:
    assert pci_id(text) == expected


def test_a_hostile_host_is_not_passed_on(rows: Rows) -> None:
    assert kernel_facts([(1.0, XID + "79, x")], "n1; reboot", rows)[0].host is None
