"""One line → one finding: the first row that matches, refined by its producer's module."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from nccl_slurm.parse import elastic, nccl, slurmtext, torch, xid
from nccl_slurm.parse.patterns import Row, Rows
from nccl_slurm.parse.prefix import MAX_RANK

__all__ = ["Finding", "find", "host_name"]

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}\Z")
#: Groups of a row for the rank, one for each wording that it knows.
_RANKS = frozenset({"global_rank", "global_rank_2", "global_rank_3"})
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}\Z")

#: Each changes ``data`` in place and returns the role and the hint, which may depend on what the line says.
_REFINE: Mapping[str, Callable[[Row, Any, str, Rows], tuple[str, str | None]]] = {
    "elastic": elastic.refine,
    "kernel": xid.refine,
    "nccl": nccl.refine,
    "slurm": slurmtext.refine,
    "torch": torch.refine,
}


class Finding(NamedTuple):
    kind: str
    producer: str
    role: str
    hint: str | None
    data: dict[str, Any]  # its own, to be added to
    rank: int | None = None  # global, by the message's own word
    host: str | None = None
    distinct: tuple[Any, ...] = ()


def find(text: str, rows: Rows, numbers: Sequence[int] | None = None) -> Finding | None:
    """``numbers``: rows to try, as a scan chose them; None tries all. ``text`` is without labels (see `prefix`)."""
    match = rows.find(text) if numbers is None else rows.match(text, numbers)
    if match is None:
        return None
    row, data = match
    rank = None if _RANKS.isdisjoint(data) else _rank(data)
    if "missing" in data and isinstance(data["missing"], (str, int)):
        data["missing"] = [int(one) for one in re.findall(r"\d{1,8}", str(data["missing"]))]
    if "pci" in data:
        data["pci"] = xid.pci_id(data["pci"]) or str(data["pci"])
    refine = _REFINE.get(row.producer)
    role, hint = refine(row, data, text, rows) if refine else (row.role, row.hint)
    host = host_name(data["node"]) if "node" in data else None
    distinct = tuple(map(data.get, row.distinct))
    return Finding(row.id, row.producer, role, hint, data, rank, host, distinct)


def host_name(value: Any) -> str | None:
    """A host's name, or None: addresses, localhost and what the node record's schema refuses are no names."""
    return _host_name(value) if isinstance(value, str) else None


@lru_cache(maxsize=256)  # asked for each fact
def _host_name(value: str) -> str | None:
    if not _HOST.match(value) or _ADDRESS.match(value) or value.startswith("localhost"):
        return None
    return value


def _rank(data: dict[str, Any]) -> int | None:
    for key in sorted(_RANKS):
        value = data.pop(key, None)
        if isinstance(value, int) and value <= MAX_RANK:
            return value
    return None
