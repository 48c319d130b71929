"""Libraries that processes have mapped, by their path: which NCCL, plugin, libfabric and CUDA the ranks really use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["KINDS", "Library", "libraries", "version_in_file", "version_of"]

KINDS = ("nccl", "ofi-plugin", "net-plugin", "libfabric", "cudart", "cuda", "efa-verbs")
_RULES = (
    ("ofi-plugin", re.compile(r"libnccl-net-(?:ofi|aws-ofi)[^/]*\.so|(?:aws-)?ofi-nccl/.*libnccl-net[^/]*\.so")),
    ("net-plugin", re.compile(r"libnccl-net[^/]*\.so")),
    ("nccl", re.compile(r"libnccl\.so")),
    ("libfabric", re.compile(r"libfabric\.so")),
    ("cudart", re.compile(r"libcudart[^/]*\.so")),
    ("efa-verbs", re.compile(r"libefa\.so|libefa-rdmav[0-9]+\.so")),
    ("cuda", re.compile(r"libcuda\.so")),
)
_VERSION = re.compile(r"\.so\.([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?:\Z| )")
_OF_NCCL = re.compile(r"nccl[-_/]?v?([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})")
_IN_PATH = re.compile(r"(?:nccl|cu|cuda)[-_/]?([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})")
_DELETED = " (deleted)"
_REAL = re.compile(r"\.so\.([0-9.]{3,20})\Z")


@dataclass(frozen=True)
class Library:
    """``version`` by the file's name, None where it tells none. ``deleted``: replaced under the process."""

    kind: str
    path: str
    version: str | None = None
    deleted: bool = False


def libraries(paths: Iterable[str]) -> list[Library]:
    """Each once, in order of kind; other paths are left out."""
    found = {one: None for one in map(_library, paths) if one is not None}
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.path))


def version_of(path: str) -> str | None:
    """Of CUDA's own libraries and of NCCL's the folder may tell it; CUDA's folder tells none of NCCL."""
    path = path.removesuffix(_DELETED)
    found = _VERSION.search(path) or (_OF_NCCL if "libnccl" in path.rsplit("/", 1)[-1] else _IN_PATH).search(path)
    return found.group(1) if found else None


def version_in_file(file: object, one: Library) -> str | None:
    """``file``: what the node tells of it. What the file says of itself goes before its name. None: nothing tells."""
    told = file if isinstance(file, dict) else {}
    real = _REAL.search(str(told.get("real", "")))
    return str(told["said"])[:60] if told.get("said") else real.group(1) if real else one.version


def _library(path: str) -> Library | None:
    name = path.rsplit("/", 1)[-1]
    for kind, rule in _RULES:
        if rule.search(path if kind == "ofi-plugin" else name):
            return Library(kind, path.removesuffix(_DELETED), version_of(path), path.endswith(_DELETED))
    return None
