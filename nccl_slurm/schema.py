"""JSON that fits one of the shipped schemas (``data/schemas``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import fastjsonschema

from nccl_slurm import strict_json

__all__ = ["loads"]


#: Of what was made of such numbers: a report adds times and uncertainties, and has to be read again.
_BEYOND = {"report/1": strict_json.BEYOND * 1024}


def loads(data: bytes, name: str) -> dict[str, Any]:
    """``name``: ``node-record/1``, ``report/1``. Raises ValueError, which says what does not fit."""
    try:
        value = strict_json.loads(data, _BEYOND.get(name, strict_json.BEYOND))
    except ValueError as error:
        raise ValueError(f"not JSON: {str(error)[:100]}") from None
    try:
        return dict(_compiled(name)(value))
    except fastjsonschema.JsonSchemaException as error:
        raise ValueError(f"does not fit {name}: {str(error)[:200]}") from None


@cache
def _compiled(name: str) -> Callable[[Any], Any]:
    """Compiled once a process: it costs more than most checks."""
    file = resources.files("nccl_slurm").joinpath(f"data/schemas/{name.replace('/', '-')}.json")
    compiled: Callable[[Any], Any] = fastjsonschema.compile(json.loads(file.read_text(encoding="utf-8")))
    return compiled
