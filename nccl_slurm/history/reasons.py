"""Why a node is drained or down → whose words these are, what they mean, whether they speak of hardware. Pure.

Rows and their sources are in data/reasons.toml. Slurm's own strings begin a reason; the same words inside a person's
sentence are that person's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["OWNERS", "Reason", "classify", "load_reasons", "under_way"]

#: Who sets reasons. ``person`` is whoever typed what no row knows; ``cloud``: power saving and its programs.
OWNERS = ("slurm", "nhc", "hyperpod", "soperator", "slinky", "oci", "azure", "cloud", "nccl-slurm", "person", "unknown")


class Reason(NamedTuple):
    """``id`` is that of the row, None where none knows the text. ``failure_class``: the class that a run on such a node
    most often has, None where the reason tells none. ``hardware``: whether the words say that hardware is at fault;
    None where they leave it open, which is never read as no."""

    id: str | None
    failure_class: str | None
    owner: str
    hardware: bool | None


_NONE = Reason(None, None, "unknown", None)


@lru_cache(maxsize=1)
def load_reasons() -> tuple[dict[str, Any], ...]:
    """Rows of data/reasons.toml that are about nodes, in its order."""
    text = resources.files("nccl_slurm").joinpath("data/reasons.toml").read_text(encoding="utf-8")
    return tuple(row for row in tomllib.loads(text)["reason"] if row["on"] == "node")


@lru_cache(maxsize=4096)
def classify(reason: str | None, by: str | None = None) -> Reason:
    """The first row that knows the text; ``by`` is the user who set it, where Slurm told one."""
    if not reason or not reason.strip():
        return _NONE
    row = _row(reason)
    if row is None:
        return Reason(None, None, "unknown" if by is None else "person", None)
    return Reason(row["id"], row.get("class"), row["owner"], _TRUTH[row["hardware"]])


def under_way(reason: str | None) -> bool:
    """Whether a program brings the node back right now, by the reason that it has set."""
    row = _row(reason or "")
    return row is not None and row.get("under_way") is True


def _row(reason: str) -> dict[str, Any] | None:
    text = " ".join(reason.lower().split())
    return next((row for row in load_reasons() if _knows(row, text)), None)


_TRUTH: dict[object, bool | None] = {True: True, False: False, "unknown": None}


def _knows(row: dict[str, Any], text: str) -> bool:
    words: Sequence[str] = row["match"]
    if row.get("at") == "start":
        return text.startswith(tuple(words))
    if row.get("at") == "clause":
        return text.startswith(tuple(words)) or any(f" : {word}" in text for word in words)
    return any(word in text for word in words)
