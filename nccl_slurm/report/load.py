"""A report as read from a file: checked against report/1 before anything renders it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import fastjsonschema

from nccl_slurm import strict_json
from nccl_slurm.errors import InputError

__all__ = ["loads"]


def loads(data: bytes) -> dict[str, Any]:
    """Raises InputError."""
    try:
        return dict(_schema()(strict_json.loads(data)))
    except fastjsonschema.JsonSchemaException as error:
        raise InputError(f"no report: does not fit report/1: {str(error)[:200]}") from None
    except ValueError as error:
        raise InputError(f"no report: not JSON: {str(error)[:100]}") from None


@cache
def _schema() -> Callable[[Any], Any]:
    text = resources.files("nccl_slurm").joinpath("data/schemas/report-1.json").read_text(encoding="utf-8")
    compiled: Callable[[Any], Any] = fastjsonschema.compile(json.loads(text))
    return compiled
