"""capture.conf as the worker sees it: the sh wrapper has sourced the file and exported its ``NCCL_SLURM_*`` names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping

__all__ = ["Conf", "from_environment"]


@dataclass(frozen=True)
class Conf:
    """Keys in lower case without their prefix. Limits: seconds. ``sysroot`` stands before /proc, /sys, /dev, /opt."""

    prefix: str = "/opt/nccl-slurm"
    python: str = "/usr/bin/python3"
    spool: str = "/var/spool/nccl-slurm"
    shared: str = ""
    ship_uid: int | None = None
    outbox_group: str = ""
    identity: str = ""
    sysroot: str = ""
    kernel_log: str = ""
    patterns: str = ""
    worker_limit_s: float = 300.0
    gpu_query_limit_s: float = 30.0
    retain_hours: float = 72.0
    spool_max_mb: float = 4096.0

    def under(self, path: str) -> str:
        """``path`` of this machine, or of the tree that stands in for it."""
        return self.sysroot + path


def from_environment(environment: Mapping[str, str] | None = None) -> Conf:
    """A number that is none, or below zero, becomes the default: a typo must not stop the capture on a node."""
    values = os.environ if environment is None else environment

    def text(key: str, default: str) -> str:
        return values.get("NCCL_SLURM_" + key.upper()) or default

    def number(key: str, default: float) -> float:
        try:
            value = float(text(key, ""))
        except ValueError:
            return default
        return value if 0 <= value < float("inf") else default

    uid = text("ship_uid", "")
    return Conf(
        prefix=text("prefix", Conf.prefix),
        python=text("python", Conf.python),
        spool=text("spool", Conf.spool),
        shared=text("shared", ""),
        ship_uid=int(uid) if uid.isascii() and uid.isdigit() else None,
        outbox_group=text("outbox_group", ""),
        identity=text("identity", ""),
        sysroot=text("sysroot", "").rstrip("/"),
        kernel_log=text("kernel_log", ""),
        patterns=text("patterns", ""),
        worker_limit_s=number("worker_limit_s", Conf.worker_limit_s),
        gpu_query_limit_s=number("gpu_query_limit_s", Conf.gpu_query_limit_s),
        retain_hours=number("retain_hours", Conf.retain_hours),
        spool_max_mb=number("spool_max_mb", Conf.spool_max_mb),
    )
