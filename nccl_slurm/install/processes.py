"""Daemons of this installation that run: what systemd did not start it does not stop either."""

from __future__ import annotations

import os

__all__ = ["daemons"]


def daemons(venv: str, proc: str = "/proc") -> list[int]:
    """Pids of ``nccl-slurm daemon``, by the interpreter that runs it."""
    return [int(name) for name in sorted(os.listdir(proc)) if name.isdigit() and _is_daemon(f"{proc}/{name}", venv)]


def _is_daemon(folder: str, venv: str) -> bool:
    try:
        with open(f"{folder}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:  # it has ended
        return False
    return words[0].startswith(f"{venv}/bin/") and "daemon" in words[1:4]
