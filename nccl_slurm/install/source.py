"""The checkout (or an unpacked release) that is installed from."""

from __future__ import annotations

import os

from nccl_slurm.errors import InputError

__all__ = ["HOOKS", "ROOT", "hook_files", "package_files", "read"]

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: Below slurm/ in the source and below HOOKS where they are installed; all are programs.
HOOKS = ("prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm", "task_prolog", "epilog_slurmctld", "nccl-slurm-node")


def read(name: str) -> bytes:
    """A file of the source by its relative path. Raises InputError."""
    path = os.path.join(ROOT, name)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; run install.sh of a whole checkout") from None


def package_files() -> dict[str, bytes]:
    """Relative path → content of all that belongs to the Python package."""
    return {name: read(name) for name in _package_names()}


def _package_names() -> list[str]:
    names = []
    for base, folders, files in os.walk(os.path.join(ROOT, "nccl_slurm")):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        names += [os.path.relpath(os.path.join(base, name), ROOT) for name in sorted(files) if _is_ours(name)]
    return names


def _is_ours(name: str) -> bool:
    """Not what an editor or a compiler left there."""
    return name.endswith((".py", ".sh", ".toml", ".json", ".html", ".css", ".js", ".sql", ".txt", ".typed", ".md"))


def hook_files() -> dict[str, bytes]:
    """Path below HOOKS → content."""
    return {name: read(os.path.join("slurm", name)) for name in HOOKS}
