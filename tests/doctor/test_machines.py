"""Healthy machines of all kinds: no check finds anything wrong, and what does not belong to a kind does not apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.doctor.check import ID, Finding, judged
from nccl_slurm.doctor.registry import checks
from nccl_slurm.doctor.sources import SOURCES
from tests.doctor import machines

#: What a machine of a kind has nothing of.
NOT_HERE = {
    "p4d": {"node.ib-ports"},
    "p5": {"node.ib-ports"},
    "p5en": {"node.ib-ports"},
    "p6": {"node.ib-ports"},
    "p6-b300": {"node.ib-ports"},
    "p3dn": {"node.ib-ports", "node.fabric-manager"},
    "g5": {"node.ib-ports", "node.nvlink", "node.fabric-manager"},
    "infiniband": {"node.efa-cards", "node.ofi-plugin", "node.libfabric", "node.huge-pages"},
}
NOT_HERE["gb200"] = NOT_HERE["infiniband"] | {"node.ib-ports", "node.peermem", "node.memlock"}
GPU = {
    "gpu-count",
    "xid",
    "ecc",
    "remapped-rows",
    "nvlink",
    "fabric-manager",
    "p2p-topology",
    "acs",
    "iommu",
    "peermem",
}
GPU |= {"clocks", "power-cap", "gpu-processes", "dcgm", "pcie"}
NOT_HERE["plain"] = {f"node.{name}" for name in GPU} | NOT_HERE["infiniband"] | {"node.ib-ports", "node.memlock"}
NOT_HERE["trn1"] = {f"node.{name}" for name in GPU - {"pcie"}} | {"node.ib-ports", "node.ofi-plugin"}
#: Not told by any of these trees: no rank runs there, no HyperPod, no DCGM, no RAS.
NOBODY = {"node.nvme-mount", "node.nccl-library", "node.ras", "node.dns", "node.dcgm"}


def all_findings(kind: str, root: Path) -> list[Finding]:
    machine = machines.of(kind).process(77, "slurmd", limits=machines.limits_text())
    if machine.kind.efa:
        machine.files["/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so"] = ""
    wanted = list(checks("node"))
    seen = machine.look(root, {key for one in wanted for key in one.sources})
    return [finding for one in wanted for finding in judged(one, seen, ["n1"])]


@pytest.mark.parametrize("kind", sorted(machines.KINDS))
def test_a_healthy_machine_has_no_findings(kind: str, tmp_path: Path) -> None:
    found = all_findings(kind, tmp_path)
    assert [(one.check, one.status, one.text) for one in found if one.status in ("FAIL", "WARN")] == []
    assert [(one.check, one.text) for one in found if one.status == "UNKNOWN"] == []


@pytest.mark.parametrize("kind", sorted(machines.KINDS))
def test_what_a_kind_has_nothing_of_does_not_apply(kind: str, tmp_path: Path) -> None:
    found = all_findings(kind, tmp_path)
    assert {one.check for one in found if one.status == "NOT-APPLICABLE"} == NOT_HERE[kind] | NOBODY


#: What is promised of a node.
PLANNED = (
    "gpu-count xid ecc remapped-rows dcgm nvlink fabric-manager p2p-topology acs iommu peermem pcie clocks power-cap "
    "gpu-processes efa-cards ib-ports net-counters mtu ofi-plugin libfabric nccl-library shm memlock stack nofile "
    "huge-pages numa disk nvme-mount oom kernel clock dns firewall stale-shm ras"
)


def test_every_check_is_there_once_and_its_sources_are() -> None:
    found = list(checks("node", "fleet"))
    fleet = ["unreachable", "versions", "bandwidth", "stragglers"]
    assert [one.id for one in found if one.area == "fleet"] == [f"fleet.{name}" for name in fleet]
    assert sorted(one.id for one in found if one.area == "node") == sorted(f"node.{name}" for name in PLANNED.split())
    for one in found:
        assert ID.fullmatch(one.id) and one.title
        assert set(one.sources) <= set(SOURCES), one.id
        assert all(ID.fullmatch(other) for other in one.explains), one.id


def test_nothing_read_is_nothing_passed(tmp_path: Path) -> None:
    """A machine of which nothing can be read passes no check."""
    machine = machines.Machine(machines.KINDS["plain"], [])
    seen = machine.look(tmp_path, [])
    for one in checks("node"):
        assert {finding.status for finding in judged(one, seen, ["n1"])} <= {"UNKNOWN"}, one.id
