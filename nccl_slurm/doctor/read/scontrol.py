"""``scontrol -o -a show nodes`` and ``show partitions`` as fields. Texts of administrators are left out: they may hold
anything, ``State=IDLE`` too."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_slurm.scheduler.text import clean

__all__ = ["node_fields", "partition_fields"]

_NODE = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_FREE = re.compile(r"\s(?:OS|Reason|Comment|Extra)=")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")


def node_fields(text: str) -> dict[str, dict[str, str]]:
    """By node: ``Gres``, ``CfgTRES``, ``RealMemory``, ``State`` …"""
    found = {}
    for chunk in _NODE.split(text):
        if name := re.match(r"NodeName=(\S+)", chunk):
            found[clean(name.group(1))] = _fields(chunk)
    return found


def _fields(chunk: str) -> dict[str, str]:
    """Slurm writes OS, with blanks in it, before most fields, and the administrators' texts after all of them."""
    head, _, rest = chunk.partition(" OS=")
    body = head + (" RealMemory=" + rest.partition(" RealMemory=")[2] if rest else "")
    free = _FREE.search(body)
    return {key: clean(value) for key, value in _FIELD.findall(body[: free.start()] if free else body)}


def partition_fields(text: str) -> Mapping[str, Mapping[str, str]]:
    rows = (dict(_FIELD.findall(line)) for line in text.splitlines())
    return {row["PartitionName"]: row for row in rows if row.get("PartitionName")}
