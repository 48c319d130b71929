"""What RDMA adapters the nodes of a job have."""

from __future__ import annotations

from collections.abc import Mapping

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.observation import JobObserved, Observation

__all__ = ["SOURCES", "rdma_nodes"]

SOURCES = ("rdma-drivers",)
#: Kernel drivers of adapters → the word of NCCL's network. mlx4 and older ones have no GPUDirect.
_KIND = {"efa": "EFA", "mlx5_core": "InfiniBand or RoCE", "bnxt_re": "RoCE", "bnxt_en": "RoCE", "irdma": "RoCE"}


def rdma_nodes(observed: JobObserved) -> Mapping[str, Mapping[str, int]]:
    """Node → kind of adapter → how many; empty where the node has none. Nodes that did not tell are absent."""
    found: dict[str, Mapping[str, int]] = {}
    for name, node in observed.fleet.nodes.items():
        try:
            found[name] = _adapters(node)
        except NotObserved:
            continue
    return found


def _adapters(node: Observation) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for target in node.present("rdma-drivers").values():
        kind = _KIND.get(target.strip().rsplit("/", 1)[-1])
        if kind:
            counts[kind] = counts.get(kind, 0) + 1
    return counts
