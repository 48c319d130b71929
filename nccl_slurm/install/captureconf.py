"""capture.conf as a host has it in force: which keys nobody reads, which values can't be meant."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import os
import re
from typing import Iterable, Mapping

from nccl_slurm.capture.conf import Conf
from nccl_slurm.install.layout import Layout

__all__ = ["known_keys", "unmeant"]

_PREFIX = "NCCL_SLURM_"
#: Names that hooks use among themselves.
_NO_KEYS = {"NCCL_SLURM_CONF", "NCCL_SLURM_SET"}
_NUMBER = ("_S", "_HOURS", "_MB", "_SIZE", "_UID")
_PATH = (
    "HOOKS",
    "PREFIX",
    "PYTHON",
    "SPOOL",
    "SHARED",
    "PATTERNS",
    "EVENTS",
    "SYSROOT",
    "KERNEL_LOG",
    "_PROLOG",
    "_SLURMCTLD",
)
_CHOICE = {
    "NCCL_SLURM_FR_DUMP": ("on", "off"),
    "NCCL_SLURM_ELASTIC_LOGS": ("on", "off"),
    "NCCL_SLURM_NCCL_DEBUG_FILE": ("steps", "all", "off"),
    "NCCL_SLURM_NCCL_DEBUG": ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
}


def known_keys(layout: Layout) -> frozenset[str]:
    """Keys that somebody reads: the hooks by their text, the worker by its `Conf`."""
    worker = {_PREFIX + one.name.upper() for one in dataclasses.fields(Conf)}
    hooks = {name for text in _texts(layout) for name in re.findall(r"NCCL_SLURM_[A-Z0-9_]*[A-Z0-9]", text)}
    return frozenset((worker | hooks) - _NO_KEYS)


def _texts(layout: Layout) -> Iterable[str]:
    for pattern in (layout.prolog, layout.epilog, layout.task_prolog, layout.epilog_slurmctld, layout.node_program):
        for path in glob.glob(pattern):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read()


def unmeant(conf: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """One line each, with the remedy. ``conf``: keys that the file sets, with their values."""
    keys = sorted(known)
    found = [_misspelt(key, keys) for key in conf if key not in keys and key not in _NO_KEYS]
    return found + [why for key, value in conf.items() if value for why in _value(key, value)]


def _misspelt(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"capture.conf: nobody reads {key}" + (f"; {near[0]} may be meant" if near else "")


def _value(key: str, value: str) -> list[str]:
    if key in _CHOICE and value not in _CHOICE[key]:
        return [f"capture.conf: {key}={value}: give one of {', '.join(_CHOICE[key])}"]
    if key.endswith(_NUMBER) and not re.fullmatch(r"\d+(\.\d+)?", value):
        return [f"capture.conf: {key}={value}: give a number"]
    if key.endswith(_PATH) and not os.path.isabs(value):
        return [f"capture.conf: {key}={value}: give a full path"]
    return []
