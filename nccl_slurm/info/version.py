"""Versions of the parts that ranks must have alike: NCCL, CUDA, network plugin, libfabric, torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nccl_slurm.model import Fact

__all__ = ["GPU_DRIVER", "TOLD_BY", "tells_version", "versions"]

#: A node's own query, not a line of the job.
GPU_DRIVER = "gpu.driver"
_TORCH_NCCL = re.compile(r"NCCL version: (\d+\.\d+\.\d+)")
#: Error lines of torch end in the version of NCCL.
_TORCH_ERRORS = frozenset({"torch.nccl-error", "torch.nccl-remote-error"})
#: Kinds of lines that tell a version; those of other producers end in ``.version``.
TOLD_BY = _TORCH_ERRORS | {
    "nccl.version",
    GPU_DRIVER,
    "nccl.cuda-driver",
    "nccl.ras-cuda",
    "nccl.plugin",
    "ofi.version",
    "ofi.cuda",
    "torch.environment",
}
_LIMIT = 100


def tells_version(fact: Fact) -> bool:
    """By its kind."""
    return fact.kind in TOLD_BY or fact.kind.endswith(".version")


def versions(facts: Iterable[Fact]) -> Iterator[tuple[str, str, Fact]]:
    """(component, version, line that says so).

    ``gpu driver`` is NVIDIA's driver by the node's own query, ``cuda driver`` the newest CUDA that a driver can do,
    ``cuda`` the toolkit that NCCL was built with, ``cuda runtime`` the library in use; ``network plugin`` has its name
    in its version.
    """
    for fact in facts:
        if not tells_version(fact):
            continue
        for component, version in _of(fact):
            if version:
                yield component, version[:_LIMIT], fact


def _of(fact: Fact) -> list[tuple[str, str]]:
    if fact.kind == "nccl.version":
        return [("nccl", _text(fact, "version")), ("cuda", _text(fact, "cuda"))]
    if fact.kind == GPU_DRIVER:
        return [("gpu driver", _text(fact, "version"))]
    if fact.kind in ("nccl.cuda-driver", "nccl.ras-cuda", "ofi.cuda"):
        return [("cuda driver", _dotted(fact, "driver")), ("cuda runtime", _dotted(fact, "runtime"))]
    if fact.kind == "nccl.plugin":
        return [("network plugin", " ".join(filter(None, (_text(fact, "plugin"), _text(fact, "interface")))))]
    if fact.kind == "ofi.version":
        return [("libfabric" if _text(fact, "library") else "aws-ofi-nccl", _text(fact, "version"))]
    if fact.kind in _TORCH_ERRORS:
        return [("nccl", _text(fact, "version"))]
    if fact.kind == "torch.environment":
        return [("nccl", version) for version in _TORCH_NCCL.findall(_text(fact, "settings"))]
    component, dot, rest = fact.kind.partition(".")
    return [(component, _text(fact, "version"))] if dot and rest == "version" else []


def _text(fact: Fact, key: str) -> str:
    value = fact.data.get(key)
    return "" if value is None else str(value)


def _dotted(fact: Fact, key: str) -> str:
    """CUDA's number: 12040 → 12.4."""
    value = fact.data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1000:
        return ""
    return f"{value // 1000}.{value % 1000 // 10}"
