"""Findings of ``nccl-slurm doctor --json``: from a file, or from a doctor that is run now, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from nccl_slurm.capture.command import run
from nccl_slurm.errors import InputError

__all__ = ["of_file", "of_run"]

_MAX = 64 << 20
#: 1,000 nodes take two minutes.
_LIMIT_S = 300.0
_TAKES = "--doctor takes what `nccl-slurm doctor --json` printed"


def of_file(path: str) -> dict[str, Any]:
    """Raises InputError."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {_TAKES}") from None
    value = _value(text)
    if value is None:
        raise InputError(f"{path}: no findings in it; {_TAKES}")
    return value


def of_run(job: str, config_path: str | None, command: Sequence[str] = ()) -> dict[str, Any]:
    """With its own time limits, and ours. ``command``: in its place, in tests. Raises InputError."""
    argv = [*(command or (sys.executable, "-m", "nccl_slurm.cli.main")), "doctor", "--job", job, "--json"]
    argv += ["--config", config_path] if config_path else []
    answer = run(argv, limit_s=_LIMIT_S, limit_bytes=_MAX, env=_environment(), errors=False)
    value = _value(answer.text.encode())  # it ends with 1 where it found something
    if value is None:
        why = (answer.why or "it printed no findings").replace(": no message", "")
        raise InputError(f"{why}; `nccl-slurm doctor --job {job}` by itself says more")
    return value


def _environment() -> dict[str, str]:
    """What boto3 and ssh look at is the caller's."""
    return {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "TZ", "PATH")}


def _value(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("findings"), list) else None
