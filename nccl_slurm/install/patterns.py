"""Pattern rows as the one JSON that nodes with a Python older than 3.11 read: made here, or found where it was left."""

from __future__ import annotations

import os
import subprocess
import sys

from nccl_slurm.errors import ConfigError, InputError, InstallError
from nccl_slurm.install import source
from nccl_slurm.install.facts import Facts
from nccl_slurm.install.options import Options
from nccl_slurm.install.venv import Venv
from nccl_slurm.parse.patterns import compile_rows, load_rows

__all__ = ["SHARED_NAME", "compiled_by", "for_node"]

SHARED_NAME = "patterns.json"
_LIMIT_S = 300


def for_node(options: Options, facts: Facts, shared: str) -> bytes | None:
    """None where this node's Python reads TOML itself, or where there are none to be had (`is_missing`)."""
    if options.patterns:
        return _read(options.patterns)
    if facts.python.version >= (3, 11):
        return None
    layout = options.layout
    for path in (f"{shared}/{SHARED_NAME}" if shared else "", layout.patterns_json):
        if path and _is_roots(layout.on_disk(path)):
            return _read(layout.on_disk(path))
    if sys.version_info >= (3, 11):
        return compile_rows(source.read("nccl_slurm/data/patterns.toml").decode()).encode()
    return None


def _is_roots(path: str) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    return info.st_uid == 0 and not info.st_mode & 0o022


def _read(path: str) -> bytes:
    """Raises InputError where it is no such file."""
    try:
        load_rows(path)
        with open(path, "rb") as file:
            return file.read()
    except (ConfigError, OSError) as error:
        raise InputError(f"{error}; `nccl-slurm rules compile` prints it anew") from None


def compiled_by(venv: Venv, daemon_conf: str) -> bytes:
    """With the site's rows in it. Raises InstallError."""
    command = [venv.program, "-I", "-m", "nccl_slurm.cli.main", "rules", "compile", "--config", daemon_conf]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise InstallError(f"pattern rows: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
    return done.stdout
