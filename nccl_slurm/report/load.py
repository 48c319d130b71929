"""A report as read from a file: checked against report/1 before anything renders it."""

from __future__ import annotations

from typing import Any

from nccl_slurm import schema
from nccl_slurm.errors import InputError

__all__ = ["loads"]


def loads(data: bytes) -> dict[str, Any]:
    """Raises InputError."""
    try:
        return schema.loads(data, "report/1")
    except ValueError as error:
        raise InputError(f"no report: {error}") from None
