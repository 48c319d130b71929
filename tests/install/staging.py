"""A frozen copy of the checkout, a tree to install into, and what a tree holds."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHECKOUT", "Installer", "copy_checkout", "snapshot"]

CHECKOUT = Path(__file__).resolve().parents[2]
_PARTS = ("nccl_slurm", "slurm", "etc", "install.sh", "pyproject.toml", "README.md", "LICENSE")


def copy_checkout(folder: Path) -> Path:
    """Others may edit the checkout while tests run."""
    folder.mkdir(mode=0o755)
    for name in _PARTS:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, folder / name)
    return folder


def snapshot(root: Path, *, times: bool = False) -> dict[str, tuple[object, ...]]:
    """Relative path → kind and mode, owner, content or target; with ``times`` inode and change time too."""
    found: dict[str, tuple[object, ...]] = {}
    for base, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(base, name)
            info = path.lstat()
            content: object = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            extra = (info.st_ino, info.st_mtime_ns) if times and not stat.S_ISDIR(info.st_mode) else ()
            found[str(path.relative_to(root))] = (info.st_mode, info.st_uid, info.st_gid, content, *extra)
    return found


@dataclass
class Installer:
    """install.sh of ``source`` on the tree ``root``."""

    source: Path
    root: Path

    def __call__(self, *options: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/bash", str(self.source / "install.sh"), *options, "--root", str(self.root)]
        done = subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr, done.stderr
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def at(self, path: str) -> Path:
        return Path(f"{self.root}{path}")
