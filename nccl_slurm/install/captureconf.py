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

__all__ = ["KEYS", "known_keys", "unmeant"]

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


_NAMES = """
HOOKS PREFIX PYTHON SPOOL SHARED SHIP_UID OUTBOX_GROUP IDENTITY SYSROOT KERNEL_LOG PARTITIONS_OFF NCCL_DEBUG
NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE TIMESTAMP_LEVELS FR_BUFFER_SIZE FR_DUMP ELASTIC_LOGS WORKER_LIMIT_S GPU_QUERY_LIMIT_S
RETAIN_HOURS SPOOL_MAX_MB PATTERNS SITE_TASK_PROLOG SITE_EPILOG_SLURMCTLD EVENTS
"""
#: Those of the shipped file, for hosts without hooks.
KEYS = frozenset(_PREFIX + name for name in _NAMES.split())


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
    names = [name[len(_PREFIX) :] for name in known]
    near = difflib.get_close_matches(key[len(_PREFIX) :], names, n=1)
    return f"capture.conf: nobody reads {key}; {f'{_PREFIX}{near[0]} may be meant' if near else 'leave it out'}"


def _value(key: str, value: str) -> list[str]:
    if key in _CHOICE and value not in _CHOICE[key]:
        return [f"capture.conf: {key}={value}: give one of {', '.join(_CHOICE[key])}"]
    if key.endswith(_NUMBER) and not re.fullmatch(r"\d+(\.\d+)?", value):
        return [f"capture.conf: {key}={value}: give a number"]
    if key.endswith("_LIMIT_S") and float(value) == 0:
        return [f"capture.conf: {key}={value}: ends the worker at once; give a number above 0"]
    if key.endswith(_PATH) and not os.path.isabs(value):
        return [f"capture.conf: {key}={value}: give a full path"]
    return []
