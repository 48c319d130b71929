"""The SPANK plugin, built by make for the Slurm whose headers are on this host, or as it lies built in the checkout.

It is optional: where it can't be had the installer says why and goes on. plugstack.conf is edited by a person.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile

from nccl_slurm.install.layout import Layout
from nccl_slurm.install.slurmconf import SlurmConfig
from nccl_slurm.install.source import ROOT

__all__ = ["advice", "is_plugin", "plugins", "release_name"]

_SOURCE = os.path.join(ROOT, "slurm", "spank")
_NAME = re.compile(r"nccl_slurm-\d+\.\d\d\.so\Z")
_LIMIT_S = 120
_PATH = "/usr/local/bin:/usr/bin:/bin"


def release_name(config: SlurmConfig) -> str:
    """Slurm loads a plugin of its own major.minor alone."""
    return "nccl_slurm-{}.{:02d}.so".format(*config.release)


def is_plugin(path: str, layout: Layout) -> bool:
    """One of another release stays: slurmd may still be of that."""
    return os.path.dirname(path) == layout.spank and _NAME.match(os.path.basename(path)) is not None


def plugins() -> tuple[dict[str, bytes], str]:
    """Name → content, and why none could be built here (empty where one was)."""
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-spank-") as folder:
        why = _build(folder)
        return {**_in(_SOURCE), **_in(folder)}, why


def _build(folder: str) -> str:
    if not os.path.exists(os.path.join(_SOURCE, "Makefile")):
        return "its source is not in this checkout"
    absent = [tool for tool in ("make", "cc") if shutil.which(tool, path=_PATH) is None]
    if absent:
        return f"no {' and no '.join(absent)} here"
    command = ["make", "-s", "-C", _SOURCE, f"OUT={folder}"]
    try:
        done = subprocess.run(
            command, env={"PATH": _PATH, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if done.returncode == 0 else (said or ["make failed"])[0].replace("nccl-slurm: ", "")[:200]


def _in(folder: str) -> dict[str, bytes]:
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if _NAME.match(name):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
    return found


def advice(config: SlurmConfig, layout: Layout, spool: str, absent: str) -> str:
    """The line for plugstack.conf, like those for slurm.conf; ``absent``: the nodes on which the file is not."""
    name = os.path.join(layout.spank, release_name(config))
    where = os.path.join(os.path.dirname(config.path), "plugstack.conf")
    if absent:
        return f"no SPANK plugin {name} on {absent}: how tasks end is not known there (docs/spank.md)"
    if _names(where, name):
        return f"{where} names the SPANK plugin already"
    line = f"optional {name} spool={spool}"
    line += f" conf={layout.capture_conf}" if layout.conf != Layout().conf else ""
    return f"for how each task ended, and --nccl-capture (docs/spank.md), in {where} on all hosts: {line}"


def _names(path: str, plugin: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(plugin in line.split("#", 1)[0].split() for line in file)
    except OSError:
        return False
