"""``task.<step>.<procid>``: what task_prolog wrote of one Slurm task, as ``name=value`` lines.

A task is a rank only where srun starts one task a rank; under torchrun it is a node's agent. So the numbers stay in
``data`` and make no rank.
"""

from __future__ import annotations

import re
from typing import Any

from nccl_slurm.model import Fact
from nccl_slurm.parse.finding import host_name
from nccl_slurm.parse.source import Source

__all__ = ["SIZE_LIMIT", "fact"]

SIZE_LIMIT = 4096
_NUMBER = re.compile(r"\d{1,15}\Z", re.ASCII)


def fact(source: Source, raw: bytes) -> Fact:
    lines = raw.decode("utf-8", "replace").splitlines()
    values = {key: value for key, _, value in (line.partition("=") for line in lines[:50])}
    data: dict[str, Any] = {key: values.get(key, "")[:200] for key in ("step", "gpus")}
    for key in ("procid", "localid", "pid"):
        if _NUMBER.match(values.get(key, "")):
            data[key] = int(values[key])
    at = float(values["time"]) if _NUMBER.match(values.get("time", "")) else _written(source)
    return Fact(
        kind="slurm.task",
        text=f"task {data.get('procid', '?')} of step {data['step'] or '?'} started",
        producer="slurm",
        role="context",
        trust=source.trust,
        file=source.name,
        host=host_name(values.get("host")) or source.host,
        time=at,
        uncertainty_s=None if at is None else 1.0,
        data=data,
    )


def _written(source: Source) -> float | None:
    """The file's own time, on the node that has it; a copy elsewhere may have a later one."""
    return source.mtime if source.host is not None else None
