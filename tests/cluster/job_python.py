"""A Python for the jobs of alice and bob.

The checkout's environment may be closed to them: its folder, or the interpreter behind ``.venv/bin/python`` (a Python
below /root, say). What is closed is then linked hard, or copied across file systems, into the scratch folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.cluster.scratch import USERS

CHECKOUT = Path(__file__).resolve().parents[2]

__all__ = ["job_python", "torch_of_jobs"]


def job_python(folder: Path) -> Path:
    """Path of an interpreter that ordinary users can run; ``folder`` is made where one has to be put together."""
    if _runs(Path(sys.executable)):
        return Path(sys.executable)
    made = folder / "bin" / "python3"
    if not made.exists():
        _put_together(folder, made)
    return made


def _put_together(folder: Path, made: Path) -> None:
    """An environment by hand (PEP 405): pyvenv.cfg, a link to an interpreter, and a .pth line to the packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = next((path for path in _system_pythons(version) if _runs(path)), None) or _copied_base(
        folder / "base", version
    )
    own = folder / "lib" / version / "site-packages"
    for path in (made.parent, own):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    made.symlink_to(base)
    (own / "packages.pth").write_text(f"{_packages(folder)}\n{_checkout(folder)}\n")


def _system_pythons(version: str) -> list[Path]:
    return [Path(prefix) / "bin" / version for prefix in ("/usr", "/usr/local")]


def _packages(folder: Path) -> Path:
    """The environment's site-packages, or a copy where ordinary users can't read it."""
    packages = Path(sysconfig.get_path("purelib"))
    if _as_alice(["test", "-x", str(packages)]):
        return packages
    _link_tree(packages, folder / "packages")
    return folder / "packages"


def _checkout(folder: Path) -> Path:
    """Where ``import nccl_slurm`` finds the package: the checkout, or a copy where ordinary users can't read it."""
    if _as_alice(["test", "-r", str(CHECKOUT / "nccl_slurm" / "__init__.py")]):
        return CHECKOUT
    _link_tree(CHECKOUT / "nccl_slurm", folder / "checkout" / "nccl_slurm")
    return folder / "checkout"


def _copied_base(target: Path, version: str) -> Path:
    """The interpreter and its standard library, without its own site-packages."""
    base = Path(sys.base_prefix)
    (target / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(sys.executable), target / "bin" / version)
    _link_tree(base / "lib" / version, target / "lib" / version)
    for library in (base / "lib").glob("libpython*"):
        shutil.copy2(library, target / "lib")
    return target / "bin" / version


def _link_tree(source: Path, target: Path) -> None:
    skip = shutil.ignore_patterns("__pycache__", "test", "site-packages")
    try:
        shutil.copytree(source, target, copy_function=os.link, ignore=skip, symlinks=True)
    except shutil.Error:  # another file system
        shutil.rmtree(target)
        shutil.copytree(source, target, ignore=skip, symlinks=True)


def _runs(python: Path) -> bool:
    return python.exists() and _as_alice([str(python), "-I", "-c", "import ctypes, ssl"])


def _as_alice(command: list[str]) -> bool:
    uid = USERS["alice"]
    try:
        return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True).returncode == 0
    except PermissionError:
        return False


def torch_of_jobs(python: Path) -> str | None:
    """Version of the torch that a job would import, None where there is none. Does not import it: that takes 3 s."""
    look = "import importlib.metadata as m; print(m.version('torch'))"
    told = subprocess.run([str(python), "-c", look], capture_output=True, text=True)
    return told.stdout.strip() or None
