"""Findings that an earlier doctor printed, from a file: ``--compare``, ``bundle --doctor``."""

from __future__ import annotations

import os
import stat
from typing import Any

from nccl_slurm import schema
from nccl_slurm.doctor.result import SCHEMA
from nccl_slurm.errors import InputError

__all__ = ["read", "read_text"]

_MAX = 256 << 20


def read(path: str) -> dict[str, Any]:
    """Raises InputError, without the option's name."""
    try:
        return read_text(_bytes(path))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"{path}: {why}; give the output of nccl-slurm doctor --json") from None


def read_text(text: bytes) -> dict[str, Any]:
    """Raises ValueError, which says what does not fit."""
    return schema.loads(text, SCHEMA.removeprefix("nccl-slurm/"))


def _bytes(path: str) -> bytes:
    """Nobody waits for whoever writes into a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("is no regular file")
        if info.st_size > _MAX:
            raise ValueError(f"has {info.st_size} bytes, more than {_MAX}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX)
    finally:
        os.close(descriptor)
