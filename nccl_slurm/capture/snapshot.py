"""The state of the node at one moment, before and after a run. What can't be read is None and a gap, never zero."""

from __future__ import annotations

import os
import time
from typing import Any, Mapping

from nccl_slurm.capture import gpu, machine, ports
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

__all__ = ["take"]


def take(conf: Conf, names: Mapping[int, str], gaps: list[Gap]) -> dict[str, Any]:
    """One of the record's ``snapshots``. ``start`` and ``end`` tell how long the readings took (a sick GPU: 30 s).
    ``names``: the node's processes, see `machine.process_names`."""
    start = time.time()
    gpus = gpu.query(conf)
    gaps += gpus.gaps
    taken = {
        "gpus": gpus.gpus,
        "driver": gpus.driver,
        "ports": ports.read_ports(conf.sysroot, gaps),
        "shm": _shm(conf, gaps),
        "limits": _limits(conf, names, gaps),
        "disks": _disks(conf, gaps),
        "load": _load(conf, gaps),
        "gpu_processes": gpus.processes,
    }
    return {"start": start, "end": time.time(), **taken}


def _shm(conf: Conf, gaps: list[Gap]) -> dict[str, int] | None:
    """Bytes. NCCL's shared-memory transport needs room here."""
    try:
        info = os.statvfs(conf.under("/dev/shm"))  # noqa: S108 # its size is what is asked
    except OSError as error:
        gaps.append(Gap("shm", f"{error.filename}: {error.strerror}"))
        return None
    return {"size": info.f_blocks * info.f_frsize, "used": (info.f_blocks - info.f_bfree) * info.f_frsize}


def _limits(conf: Conf, names: Mapping[int, str], gaps: list[Gap]) -> dict[str, Any] | None:
    limits = machine.limits_of(conf.sysroot, names)
    if limits is None:
        gaps.append(Gap("limits", "no slurmstepd or slurmd whose limits can be read"))
    return limits


def _disks(conf: Conf, gaps: list[Gap]) -> list[dict[str, Any]] | None:
    """Local file systems that a job fills: each once. Bytes; ``free`` is what an ordinary user may still take."""
    seen, disks = set(), []
    for path in ("/", "/tmp", "/var", conf.spool):  # noqa: S108 # its free space is what is asked
        where = path if path == conf.spool else conf.under(path)
        try:
            device, info = os.stat(where).st_dev, os.statvfs(where)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            size, free = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
            disks.append({"path": path, "size": size, "free": free, "inodes_free": info.f_favail})
    if not disks:
        gaps.append(Gap("disks", "no local file system can be read"))
    return disks or None


def _load(conf: Conf, gaps: list[Gap]) -> list[float] | None:
    """Over 1, 5 and 15 minutes."""
    try:
        with open(conf.under("/proc/loadavg"), encoding="ascii") as file:
            return [float(word) for word in file.read(100).split()[:3]]
    except (OSError, ValueError):
        gaps.append(Gap("load", "/proc/loadavg can't be read"))
        return None
