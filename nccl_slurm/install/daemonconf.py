"""What ``nccl-slurm config check`` says of this controller's nccl-slurm.toml, by the environment that is installed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from nccl_slurm.install.layout import Layout

__all__ = ["Checked", "checked"]

_LIMIT_S = 120


@dataclass(frozen=True)
class Checked:
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def checked(layout: Layout) -> Checked:
    """Empty where no daemon is installed on this host."""
    python = os.path.join(layout.venv, "bin", "python")
    if not os.access(python, os.X_OK):
        return Checked()
    command = [python, "-I", "-m", "nccl_slurm.cli.main", "config", "check", "--config", layout.daemon_conf]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, encoding="utf-8", errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Checked(errors=(f"nccl-slurm config check: {error}",))
    return _read(done.returncode, done.stdout, done.stderr)


def _read(status: int, out: str, told: str) -> Checked:
    def of(kind: str) -> tuple[str, ...]:
        return tuple(line[len(kind) :] for line in out.splitlines() if line.startswith(kind))

    errors = of("error: ")
    if status != 0 and not errors:
        errors = ("nccl-slurm config check: " + ("".join(told.strip().splitlines()[-1:]) or f"status {status}"),)
    return Checked(errors, of("warning: "))
