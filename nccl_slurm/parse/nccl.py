"""NCCL's lines beyond a row: bus ids, and the table that maps host and pid to a global rank.

``rank`` in an Init line is a rank *in that communicator*. It is the global rank only for the communicator of all
ranks, and nothing on the line says which one that is: see `Communicators.ranks`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nccl_slurm.parse.patterns import Row, Rows

__all__ = ["Communicators", "Member", "bus_id", "refine"]

_LIMIT = 200_000


def refine(row: Row, data: dict[str, Any], text: str, rows: Rows) -> tuple[str, str | None]:
    gpu = bus_id(data.pop("bus")) if "bus" in data else None
    if gpu is not None:
        data["gpu"] = gpu
    if "value" in data:
        data["value"] = str(data["value"])
    return row.role, row.hint


def bus_id(digits: Any) -> str | None:
    """``3b000`` (hex of domain, bus, device, function) → ``0000:3b:00`` as in the kernel's Xid lines."""
    try:
        value = int(str(digits), 16)
    except ValueError:
        return None
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}" if digits is not None else None


class Member(NamedTuple):
    host: str
    pid: int
    rank: int
    size: int
    gpu: str | None
    split: bool


class Communicators:
    """Collects Init lines; bounded, since a job can print any number of them."""

    def __init__(self) -> None:
        self._members: dict[Member, None] = {}

    def add(self, host: str | None, pid: int | None, data: dict[str, Any]) -> None:
        rank, size = data.get("group_rank"), data.get("nranks")
        if host is None or pid is None or not isinstance(rank, int) or not isinstance(size, int) or rank >= size:
            return
        if len(self._members) < _LIMIT:
            self._members[Member(host, pid, rank, size, data.get("gpu"), "parent" in data)] = None

    def size(self) -> int | None:
        """Ranks of the largest communicator that was not split off another, or None."""
        return max((member.size for member in self._members if not member.split), default=None)

    def ranks(self, world_size: int | None) -> tuple[dict[tuple[str, int], Member], str | None]:
        """(host, pid) → its membership in the communicator of all ranks; and why there is none, or None.

        Two processes may claim one rank only one after the other (a restart: same host, same GPU). Anything else
        means that the largest communicators seen are those of sub groups, whose ranks are not global.
        """
        largest = self.size()
        if largest is None:
            return {}, None
        if world_size is not None and largest < world_size:
            return {}, f"NCCL: largest communicator has {largest} of {world_size} ranks; its ranks are not global"
        found: dict[tuple[str, int], Member] = {}
        place: dict[int, tuple[str, str | None]] = {}
        members = [member for member in self._members if member.size == largest]
        for member in sorted(members, key=lambda one: one.split):
            if member.split and (member.host, member.pid) in found:
                continue
            one = found.setdefault((member.host, member.pid), member)
            if one.rank != member.rank or place.setdefault(member.rank, _place(member)) != _place(member):
                return {}, f"NCCL: rank {member.rank} of {largest} is claimed twice; Init lines are of sub groups"
        return found, None


def _place(member: Member) -> tuple[str, str | None]:
    return member.host, member.gpu
