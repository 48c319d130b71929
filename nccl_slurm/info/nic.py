"""Which adapters a rank sent and received by, as NCCL's INFO lines tell it.

``via NET/IB/3`` counts in the list that the same process printed before (``NET/IB : Using [0]mlx5_0:1/IB …``).
libfabric's plugin prints no names, so its adapters stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_slurm.info.path import path
from nccl_slurm.model import Fact

__all__ = ["nics"]

_DEVICE = re.compile(r"\[(\d{1,4})\]([\w.-]{1,64})")
_LIMIT = 64

#: File, host and process id of a line.
_Process = tuple[str | None, str | None, object]


def nics(facts: Iterable[Fact]) -> dict[int, tuple[str, ...]]:
    """Global rank → names (``mlx5_3``, ``eth0``), or transport and number where the list was not seen (``IB 3``).

    Only what channels that were kept say: of many alike the parser keeps a few, so an absent adapter proves nothing.
    """
    lines = [fact for fact in facts if fact.kind in ("nccl.devices", "nccl.channel")]
    listed = {(_process(fact), str(fact.data.get("transport"))): _names(fact) for fact in lines if not path(fact)}
    found: dict[int, set[str]] = {}
    for fact in lines:
        way, number = path(fact), fact.data.get("device")
        if fact.rank is None or way is None or not way.startswith("NET/") or not isinstance(number, int):
            continue
        transport = way.split("/")[1]
        name = listed.get((_process(fact), transport), {}).get(number, f"{transport} {number}")
        found.setdefault(fact.rank, set()).add(name)
    return {rank: tuple(sorted(names, key=_order))[:_LIMIT] for rank, names in found.items()}


def _names(fact: Fact) -> dict[int, str]:
    return {int(number): name for number, name in _DEVICE.findall(str(fact.data.get("devices", "")))}


def _process(fact: Fact) -> _Process:
    return fact.file, fact.host, fact.data.get("writer_pid")


def _order(name: str) -> tuple[str, int]:
    """``mlx5_10`` after ``mlx5_9``."""
    digits = re.search(r"\d+\Z", name)
    return (name[: digits.start()], int(digits[0])) if digits else (name, -1)
