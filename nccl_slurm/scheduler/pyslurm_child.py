"""The process that holds pyslurm: one line of JSON in, one line of JSON out. Run as a script; imports nothing of ours.

pyslurm ends the interpreter where slurm.conf is bad, holds the GIL while slurmctld is away, and is bound to private
structs of one Slurm release: whoever asks watches this process and may kill it at any time. libslurm prints to standard
output and standard error: both are standard error here, the answers go to the pipe that standard output was.

The first line out tells ``{"pyslurm": "25.11.2"}``. Answers are ``{"rows": [...]}``, where Slurm said no
``{"errno": n, "text": ...}``, and ``{"failed": ...}`` for all else.
Times are seconds since 1970 UTC; what is not set is null.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

NODE = (
    *("name", "state", "reason", "reason_time", "boot_time", "slurmd_start_time", "slurm_version"),
    *("configured_gres", "hostname", "address"),
)
JOB = (
    *("id", "name", "state", "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel"),
    *("heterogeneous_id", "heterogeneous_offset", "user_id", "partition", "state_reason"),
    *("allocated_nodes", "batch_host", "is_batch_job", "standard_output", "standard_error", "working_directory"),
    *("comment", "submit_time", "start_time", "end_time", "requeue_count", "exit_code", "exit_code_signal"),
    *("derived_exit_code", "derived_exit_code_signal"),
)
RECORD = (
    *("id", "state", "array_id", "array_task_id", "array_tasks_waiting", "array_tasks_parallel"),
    *("heterogeneous_id", "heterogeneous_offset", "submit_time", "end_time", "nodelist", "partition", "comment"),
    "admin_comment",
)


def _nodes(slurm: Any, _wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for node in slurm.Nodes.load().values():
        yield {**_row(node, NODE), "reason_user": node.reason_user if node.reason else None}


def _jobs(slurm: Any, _wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """pyslurm's ``gres`` of a job is what it wants, that of ``allocated_tres`` what it has. Each ``user_name`` asks the
    system's list of users."""
    users: dict[int, str | None] = {}
    for job in slurm.Jobs.load().values():
        if job.user_id not in users:
            users[job.user_id] = job.user_name
        yield {**_row(job, JOB), "user_name": users[job.user_id], "gres": _gres(job.allocated_tres)}


def _gres(tres: Any) -> dict[str, int] | None:
    return None if tres is None else {name: int(one.count) for name, one in tres.gres.items()}


def _comments(slurm: Any, wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = slurm.db.Jobs.load(slurm.db.JobFilter(ids=_ids(wanted)))
    return (_row(job, RECORD) for job in found.values())


def _write(slurm: Any, wanted: Mapping[str, Any]) -> Sequence[int]:
    changes = slurm.db.Job(**{wanted["field"]: wanted["text"]})
    return [int(job) for job in slurm.db.Jobs.modify(slurm.db.JobFilter(ids=_ids(wanted)), changes)]


def _ids(wanted: Mapping[str, Any]) -> list[int]:
    """A filter without ids means all jobs."""
    ids = [int(job) for job in wanted["ids"]]
    if not ids:
        raise ValueError("no job ids")
    return ids


def _row(thing: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


ASKS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "nodes": _nodes,
    "jobs": _jobs,
    "comments": _comments,
    "write": _write,
}


def _answer(slurm: Any, line: str) -> str:
    """Everything that Slurm or pyslurm can raise is told to who asked."""
    try:
        wanted = json.loads(line)
        return json.dumps({"rows": list(ASKS[wanted["ask"]](slurm, wanted))})
    except slurm.RPCError as error:
        return json.dumps({"errno": error.errno, "text": str(error)})
    except Exception as error:
        return json.dumps({"failed": f"{type(error).__name__}: {error}"})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        import pyslurm as slurm
    except ImportError as error:
        sys.exit(f"pyslurm can't be imported: {error}")
    answers.write(json.dumps({"pyslurm": slurm.__version__}) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(_answer(slurm, line) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
