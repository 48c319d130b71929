"""Findings of ``nccl-slurm doctor --json``: from a file, or from a doctor that is run now, in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nccl_slurm.capture.command import run
from nccl_slurm.doctor import saved
from nccl_slurm.errors import InputError
from nccl_slurm.model import Gap
from nccl_slurm.report.visible import visible

__all__ = ["gaps", "is_of", "misfit", "of_file", "of_run"]

_MAX = 64 << 20
#: 1,000 nodes take two minutes.
_LIMIT_S = 300.0


def of_file(path: str) -> dict[str, Any]:
    """Raises InputError."""
    try:
        return saved.read(path)
    except InputError as error:
        raise InputError(f"--doctor {error}") from None


def of_run(job: str, config_path: str | None, command: Sequence[str] = ()) -> dict[str, Any]:
    """With its own time limits, and ours. ``command``: in its place, in tests. Raises InputError."""
    argv = [*(command or (sys.executable, "-m", "nccl_slurm.cli.main")), "doctor", "--job", job, "--json"]
    argv += ["--config", config_path] if config_path else []
    answer = run(argv, limit_s=_LIMIT_S, limit_bytes=_MAX, env=_environment(), errors=False)
    try:
        return saved.read_text(answer.text.encode())  # it ends with 1 where it found something
    except ValueError:
        why = (answer.why or "it printed no findings").replace(": no message", "")
        raise InputError(f"{why}; `nccl-slurm doctor --job {job}` by itself says more") from None


def misfit(doctor: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Why these findings are of another case than the report whose ``job`` this is; empty where they may be of it."""
    named, cluster = doctor["job"], doctor["cluster"]
    own = {str(job[key]) for key in ("id", "raw_id") if job[key] is not None}
    if named is not None and own and named not in own:
        return f"it is of job {visible(named, 80)}, this case of job {job['id']}"
    if cluster and job["cluster"] and cluster.lower() != job["cluster"].lower():
        return f"it is of cluster {visible(cluster, 80)}, this case of cluster {job['cluster']}"
    return ""


def is_of(doctor: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether a doctor that was asked about this very job made them, in its time or after it."""
    return (
        doctor["job"] is not None and job["id"] is not None and not misfit(doctor, job) and not _is_older(doctor, job)
    )


def gaps(doctor: Mapping[str, Any], job: Mapping[str, Any]) -> list[Gap]:
    """What these findings do not cover, as far as it can be told."""
    at = doctor["time"]
    told = []
    if doctor["job"] is None:
        told.append(f"it was asked about no job at {at}: whether its findings concern this one is not known")
    if _is_older(doctor, job):
        told.append(f"it was made at {at}, before the job began at {job['start']}")
    told += [f"not all was looked at: {visible(one, 200)}" for one in doctor.get("narrowed", ())]
    return [Gap("nccl-slurm doctor", one) for one in told]


def _is_older(doctor: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Times are RFC 3339 in UTC: they order as text."""
    return bool(job["start"]) and doctor["time"] < job["start"]


def _environment() -> dict[str, str]:
    """What boto3 and ssh look at is the caller's."""
    return {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "TZ", "PATH")}
