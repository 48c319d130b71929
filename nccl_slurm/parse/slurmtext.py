"""Slurm's lines beyond a row: the task list of ``srun: error: n[1-2]: tasks 0-7,9: …``."""

from __future__ import annotations

import re
from typing import Any

from nccl_slurm.parse.patterns import Row, Rows

__all__ = ["refine", "tasks"]

#: A list is cut there (the node record's schema allows 20,000 values).
LIMIT = 16_384
_RANGE = re.compile(r"(\d{1,8})(?:-(\d{1,8}))?\Z")


def refine(row: Row, data: dict[str, Any], text: str, rows: Rows) -> tuple[str, str | None]:
    if "tasks" in data:
        data["tasks"] = tasks(str(data["tasks"]))
    if "core" in data:
        data["core"] = 1
    if "step" in data:
        data["step"] = str(data["step"])
    hosts = str(data.get("hosts", ""))
    if hosts and not set(hosts) & set("[],"):
        data["node"] = hosts
    return row.role, row.hint


def tasks(text: str) -> list[int]:
    """``0-2,9`` or ``[0-2,9]`` → 0, 1, 2, 9, at most 16,384; parts that are no range are left out."""
    found: list[int] = []
    for part in text.strip("[]").split(","):
        match = _RANGE.match(part)
        if match is not None:
            first = int(match.group(1))
            last = int(match.group(2) or first)
            found.extend(range(first, min(last + 1, first + LIMIT - len(found))))
    return found[:LIMIT]
