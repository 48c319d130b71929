"""The controller's Python environment: nccl-slurm with what it needs, by pip, from an index or a folder of wheels."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Sequence

import nccl_slurm
from nccl_slurm.errors import InstallError
from nccl_slurm.install import source
from nccl_slurm.install.disk import remove
from nccl_slurm.install.facts import Python
from nccl_slurm.install.layout import Layout

__all__ = ["Venv"]

_PROJECT = ("pyproject.toml", "README.md", "LICENSE")
_LIMIT_S = 1800


@dataclass(frozen=True)
class Venv:
    """``wheels``: folder of wheels, nccl-slurm's own among them (`pip wheel -w DIR CHECKOUT`); None: pip's index."""

    layout: Layout
    python: Python
    wheels: str | None
    extras: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.layout.on_disk(self.layout.venv)

    @property
    def program(self) -> str:
        return os.path.join(self.folder, "bin", "python")

    def is_current(self) -> bool:
        """Made by this interpreter, from this source and with these extras, to the end."""
        try:
            with open(self._stamp, encoding="ascii") as file:
                return file.read().strip() == self._fingerprint() and os.access(self.program, os.X_OK)
        except OSError:
            return False

    def commands(self, project: str) -> list[list[str]]:
        """Of making it anew. ``project``: a copy of the source that pip may write into."""
        extra = f"[{','.join(self.extras)}]" if self.extras else ""
        pip = [self.program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
        if self.wheels:
            offline = [*pip, "--no-index", "--find-links", self.wheels]
            name = f"nccl-slurm=={nccl_slurm.__version__}"
            install = [
                [*offline, f"nccl-slurm{extra}=={nccl_slurm.__version__}"],
                [*offline, "--force-reinstall", "--no-deps", name],  # the same version may hold other code
            ]
        else:
            install = [[*pip, project + extra]]
        return [[self.python.path, "-m", "venv", self.folder], *install]

    def make(self) -> None:
        """Raises InstallError with the end of what the failed command said."""
        made_from = self._fingerprint()
        remove(self._stamp, whole=False)
        with tempfile.TemporaryDirectory(prefix="nccl-slurm-") as project:
            _copy_source(project)
            for command in self.commands(project):
                _run(command)
        if self.layout.root:
            self._forget_root()
        with open(self._stamp, "w", encoding="ascii") as file:
            file.write(made_from + "\n")

    @property
    def _stamp(self) -> str:
        return os.path.join(self.folder, "nccl-slurm.stamp")

    def _fingerprint(self) -> str:
        total = hashlib.sha256(f"{self.python} {self.extras}".encode())
        for name, content in source.package_files().items():
            total.update(name.encode() + b"\0" + content)
        total.update(source.read("pyproject.toml"))
        for path in sorted(glob.glob(os.path.join(self.wheels or "/nonexistent", "nccl_slurm-*.whl"))):
            with open(path, "rb") as file:
                total.update(file.read())
        return total.hexdigest()

    def _forget_root(self) -> None:
        """pip writes absolute paths into the scripts; they have to be right once the image runs."""
        scripts = os.path.join(self.folder, "bin")
        for name in os.listdir(scripts):
            path = os.path.join(scripts, name)
            if os.path.islink(path):
                continue
            with open(path, "r+b") as file:
                text = file.read().replace(self.folder.encode(), self.layout.venv.encode())
                file.seek(0)
                file.truncate()
                file.write(text)


def _copy_source(project: str) -> None:
    """pip builds beside the source, and a checkout is nobody's scratch folder."""
    for name in _PROJECT:
        shutil.copy(os.path.join(source.ROOT, name), project)
    for name, content in source.package_files().items():
        path = os.path.join(project, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        tail = done.stdout.decode("utf-8", "replace").strip().splitlines()[-8:]
        raise InstallError("\n  ".join([f"failed: {' '.join(command)}", *tail, _remedy(command)]))


def _remedy(command: Sequence[str]) -> str:
    if "venv" in command:
        return "install Python's venv module (Debian: python3-venv), or give another Python with --python"
    return (
        "without a package index, make a folder of wheels elsewhere (`pip wheel -w DIR CHECKOUT`) and give --wheels DIR"
    )
