"""The few names of pyslurm 25.11.2 that `pyslurm_child` uses, with its traps: a zero is None, ``db`` writes to all jobs
where a filter has no ids, libslurm prints to standard output."""

from __future__ import annotations

import types
from typing import Any

__version__ = "25.11.2"


class RPCError(Exception):
    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno = errno


def _thing(**values: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**values)


def _tres(**gres: int) -> types.SimpleNamespace:
    return _thing(gres={name: _thing(count=count) for name, count in gres.items()})


_NODE = {
    "name": "n1",
    "state": "IDLE+DRAIN",
    "reason": "nccl-slurm: xid 79",
    "reason_user": "root",
    "reason_time": 1795968364,
    "boot_time": 1795967390,
    "slurmd_start_time": 1795968200,
    "slurm_version": "25.11.7",
    "configured_gres": {"gpu:h100": 8},
    "hostname": "n1",
    "address": "10.0.0.1",
}
_JOB = {
    "id": 7,
    "name": "train",
    "state": "RUNNING",
    "array_id": None,
    "array_task_id": None,
    "array_tasks_waiting": None,
    "array_tasks_parallel": None,
    "heterogeneous_id": None,
    "heterogeneous_offset": None,
    "user_name": "alice",
    "user_id": 7001,
    "partition": "main",
    "state_reason": None,
    "allocated_nodes": "n[1-2]",
    "batch_host": "n1",
    "is_batch_job": True,
    "standard_output": "/home/alice/slurm-7.out",
    "standard_error": None,
    "working_directory": "/home/alice",
    "comment": "a\nb \udcff",
    "submit_time": 1795968000,
    "start_time": 1795968001,
    "end_time": 1796054401,
    "requeue_count": 0,
    "exit_code": None,
    "exit_code_signal": None,
    "derived_exit_code": None,
    "derived_exit_code_signal": None,
    "allocated_tres": _tres(gpu=8),
}
_RECORD = {
    **{name: _JOB[name] for name in _JOB if name.startswith(("array_", "het"))},
    **{name: _JOB[name] for name in ("partition", "submit_time")},
    "end_time": 1795968364,
    "nodelist": "n[1-2]",
    "state": "FAILED",
    "admin_comment": None,
}
_COMMENTS: dict[int, dict[str, Any]] = {7: {"comment": "before", "admin_comment": None}, 8: {"comment": None}}


class Nodes:
    @staticmethod
    def load() -> dict[str, Any]:
        print("libslurm says something", flush=True)
        return {"n1": _thing(**_NODE)}


class Jobs:
    @staticmethod
    def load() -> dict[int, Any]:
        task = {**_JOB, "id": 10, "array_id": 9, "standard_output": "/home/alice/a.out", "allocated_tres": None}
        return {7: _thing(**_JOB), 10: _thing(**task)}


class _Filter:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids or sorted(_COMMENTS)


class _Record:
    def __init__(self, **changes: str) -> None:
        self.changes = changes


class _Records:
    @staticmethod
    def load(wanted: _Filter) -> dict[int, Any]:
        return {job: _thing(**{**_RECORD, "id": job, **_COMMENTS[job]}) for job in wanted.ids if job in _COMMENTS}

    @staticmethod
    def modify(wanted: _Filter, changes: _Record) -> list[int]:
        hit = [job for job in wanted.ids if job in _COMMENTS]
        if not hit:
            raise RPCError(1900, "Data has not changed since time specified")
        for job in hit:
            _COMMENTS[job].update(changes.changes)
        return hit


db = types.SimpleNamespace(Job=_Record, JobFilter=_Filter, Jobs=_Records)
