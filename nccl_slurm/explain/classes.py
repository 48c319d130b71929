"""Our own words on failure classes: what each means, how it is proven, what to do (``data/classes.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from nccl_slurm.tables import packaged

__all__ = ["meaning_of", "steps_of", "table"]


def table() -> Mapping[str, Any]:
    """``data/classes.toml``."""
    return _table()


def meaning_of(failure_class: str) -> str:
    """What a class means and how it is proven, in two sentences or more; empty for a word that is no class."""
    one = _class(failure_class)
    return f"`{one['name']}`: {one['means']}. {one['proof']}" if one else ""


def steps_of(failure_class: str) -> tuple[str, ...]:
    """What to do, in this order; empty for a word that is no class."""
    one = _class(failure_class)
    return tuple(one["steps"]) if one else ()


def _class(name: str) -> Mapping[str, Any] | None:
    return next((each for each in _table()["class"] if each["name"] == name), None)


@cache
def _table() -> dict[str, Any]:
    return packaged("classes.toml")
