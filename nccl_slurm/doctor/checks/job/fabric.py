"""What RDMA adapters the nodes of a job have for it: those of a management network are none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.observation import JobObserved, Observation
from nccl_slurm.doctor.read.ports import Device, Port, devices

__all__ = ["SOURCES", "doubtful_nodes", "rdma_nodes"]

SOURCES = ("rdma-drivers", "rdma-ports")
#: Kernel drivers of adapters by which NCCL sends. mlx4 and older ones have no GPUDirect.
_DRIVERS = frozenset({"efa", "mlx5_core", "bnxt_re", "bnxt_en", "irdma"})
#: Adapters for management are RDMA devices too, as is Azure's accelerated networking: one a node, or slow ones.
_ROCE_GBIT, _ROCE_COUNT = 100, 2
_DOUBTFUL = "Ethernet"
_RATE = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)? Gb/sec")


def rdma_nodes(observed: JobObserved) -> Mapping[str, Mapping[str, int]]:
    """Node → kind of adapter → how many; empty where the node has none that is meant for jobs for certain. Nodes that
    did not tell are absent."""
    told = _adapters_of(observed)
    return {node: {kind: n for kind, n in kinds.items() if kind != _DOUBTFUL} for node, kinds in told.items()}


def doubtful_nodes(observed: JobObserved) -> list[str]:
    """Nodes with Ethernet adapters alone that may be meant for RoCE, and may not."""
    return sorted(node for node, kinds in _adapters_of(observed).items() if set(kinds) == {_DOUBTFUL})


def _adapters_of(observed: JobObserved) -> dict[str, Mapping[str, int]]:
    found: dict[str, Mapping[str, int]] = {}
    for name, node in observed.fleet.nodes.items():
        try:
            found[name] = _adapters(node)
        except NotObserved:
            continue
    return found


def _adapters(node: Observation) -> Mapping[str, int]:
    files = dict(node.present("rdma-drivers"))
    told = devices(files)
    if any(not one.efa for one in told):
        told = devices({**files, **node.present("rdma-ports")})
    ours = [one for one in told if one.driver in _DRIVERS]
    fast = sum(_is_fast(port) for one in ours for port in _active(one) if port.layer == "Ethernet")
    kinds = [kind for one in ours if (kind := _kind(one, enough=fast >= _ROCE_COUNT)) is not None]
    return Counter(kinds)


def _kind(one: Device, *, enough: bool) -> str | None:
    """The word of NCCL's network. Raises where nothing is told of its ports. None: nothing is plugged in."""
    if one.efa:
        return "EFA"
    if not any(port.layer and port.state for port in one.ports):
        raise NotObserved(f"{one.name}: its ports could not be read")
    active = _active(one)
    if any(port.layer == "InfiniBand" for port in active):
        return "InfiniBand"
    if not active:
        return None
    return "RoCE" if enough and any(map(_is_fast, active)) else _DOUBTFUL


def _active(one: Device) -> list[Port]:
    return [port for port in one.ports if port.state == "ACTIVE"]


def _is_fast(port: Port) -> bool:
    found = _RATE.match(port.rate or "")
    return found is not None and int(found.group(1)) >= _ROCE_GBIT
