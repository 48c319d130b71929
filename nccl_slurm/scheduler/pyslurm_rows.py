"""Pure readers of what `pyslurm_child` sends: its rows → the nouns of `client`, as `text` and `jobtext` give them.

pyslurm (25.11.2) has a zero of 32 bits for *not set*: task 0 of an array and component 0 of a heterogeneous job have no
number in its rows, and are told by what else they have. It takes a text ``None`` for no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nccl_slurm.scheduler.client import FINAL_STATES, CommentState, LiveJob, NodeState
from nccl_slurm.scheduler.text import clean, configured_gpus, gpus_of, hosts_of, split_state, text_of

__all__ = ["Doubtful", "comment_states", "live_jobs", "node_states", "release_of"]

_Row = Mapping[str, Any]

#: pyslurm reads paths into 1,024 bytes and cuts what is longer.
_LONGEST_PATH = 1000


class Doubtful(Exception):
    """These rows don't tell all that Slurm's commands tell."""


def release_of(version: str) -> tuple[int, int] | None:
    """``25.11.2`` → (25, 11); pyslurm writes 22.05 as ``22.5``."""
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(part.isdigit() for part in parts[:2]) else None


def node_states(rows: Iterable[_Row]) -> tuple[NodeState, ...]:
    return tuple(map(_node, rows))


def _node(row: _Row) -> NodeState:
    state, flags = split_state(row["state"])
    reason = clean(row["reason"]) if row["reason"] else None
    return NodeState(
        name=clean(row["name"]),
        state=state,
        flags=flags,
        reason=reason,
        reason_by=text_of(row["reason_user"]) if reason else None,
        reason_at=_time(row["reason_time"]) if reason else None,
        boot_time=_time(row["boot_time"]),
        slurmd_start=_time(row["slurmd_start_time"]),
        version=text_of(row["slurm_version"]),
        gpus=configured_gpus(",".join(f"{name}:{count}" for name, count in row["configured_gres"].items())),
        hostname=text_of(row["hostname"]),
        address=text_of(row["address"]),
    )


def live_jobs(rows: Iterable[_Row], *, gpus_tracked: bool) -> tuple[LiveJob, ...]:
    """Raises `Doubtful` where the output's path of one of them may be another than pyslurm says."""
    return tuple(_job(row, gpus_tracked) for row in rows)


def _job(row: _Row, gpus_tracked: bool) -> LiveJob:
    stdout, stderr = _paths(row) if row["is_batch_job"] else (None, None)
    task = _task(row)
    return LiveJob(
        raw_id=row["id"],
        id=_shown(row),
        name=clean(row["name"] or ""),
        state=row["state"],
        array_job_id=row["array_id"],
        array_task_id=task,
        het_job_id=row["heterogeneous_id"],
        het_offset=_offset(row),
        user=text_of(row["user_name"]),
        uid=row["user_id"],
        partition=text_of(row["partition"]),
        reason=text_of(row["state_reason"]),
        node_list=text_of(row["allocated_nodes"]) or "",
        nodes=hosts_of(row["allocated_nodes"]),
        batch_host=text_of(row["batch_host"]),
        batch=bool(row["is_batch_job"]),
        stdout=stdout,
        stderr=stderr,
        workdir=row["working_directory"],
        comment=row["comment"] or "",
        submit=_time(row["submit_time"]),
        start=_time(row["start_time"]),
        end=_time(row["end_time"]) if row["state"] in FINAL_STATES else None,
        restarts=row["requeue_count"],
        exit=f"{row['exit_code'] or 0}:{row['exit_code_signal'] or 0}",
        derived_exit=f"{row['derived_exit_code'] or 0}:{row['derived_exit_code_signal'] or 0}",
        gpus=_gpus(row["gres"], gpus_tracked),
    )


def _gpus(gres: Mapping[str, int] | None, tracked: bool) -> int | None:
    if gres is None:
        return None
    return gpus_of(",".join(["node=1", *(f"gres/{name}={count}" for name, count in gres.items())]), tracked=tracked)


def _paths(row: _Row) -> tuple[str, str]:
    """libslurm has replaced Slurm's patterns; what still looks like one is left to who knows the pattern."""
    stdout = row["standard_output"] or ""
    stderr = row["standard_error"] or stdout
    for path in (stdout, stderr):
        if not path.startswith("/") or set("%\\") & set(path) or len(path.encode("utf-8", "replace")) > _LONGEST_PATH:
            raise Doubtful(f"path of the output of job {row['id']}")
    return stdout, stderr


def comment_states(rows: Iterable[_Row], wanted: Iterable[int]) -> dict[int, CommentState]:
    """Other tasks and components of a job come along: left out. So are records without a partition (see `jobtext`)."""
    jobs = set(wanted)
    return {row["id"]: _comment(row) for row in rows if row["id"] in jobs and text_of(row["partition"]) is not None}


def _comment(row: _Row) -> CommentState:
    return CommentState(
        raw_id=row["id"],
        id=_shown(row),
        state=row["state"],
        submit=_time(row["submit_time"]),
        end=_time(row["end_time"]),
        comment=row["comment"] or "",
        admin_comment=row["admin_comment"] or "",
        ran=bool(hosts_of(row["nodelist"])),
    )


def _shown(row: _Row) -> str:
    """The id as users type it; ``42_[1-9%2]`` for the tasks of an array that wait."""
    if row["heterogeneous_id"]:
        return f"{row['heterogeneous_id']}+{_offset(row)}"
    if not row["array_id"]:
        return str(row["id"])
    task = _task(row)
    if task is not None:
        return f"{row['array_id']}_{task}"
    at_once = f"%{row['array_tasks_parallel']}" if row["array_tasks_parallel"] else ""
    return f"{row['array_id']}_[{row['array_tasks_waiting']}{at_once}]"


def _task(row: _Row) -> int | None:
    if not row["array_id"] or row["array_tasks_waiting"]:
        return None
    return int(row["array_task_id"] or 0)


def _offset(row: _Row) -> int | None:
    return int(row["heterogeneous_offset"] or 0) if row["heterogeneous_id"] else None


def _time(value: int | None) -> float | None:
    return float(value) if value else None
