"""Flight recorder dumps of simulated ranks: a pickle of plain values, as torch 2.4 and newer write it."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

from nccl_slurm.testing.scenario import Group, Scenario
from nccl_slurm.testing.story import Process

__all__ = ["dump"]

#: Entries kept of each group: the buffer is a ring of 2,000 for all.
_KEPT = 4
_VERSION = {"nccl": "2.4", "gloo": "2.10"}


def dump(scenario: Scenario, process: Process, at: float) -> bytes:
    """What this process shows of its groups at that moment by its own clock."""
    groups = scenario.members[process.rank]
    config = {str(_id(scenario, group, groups)): _config(group) for group in groups}
    status = {str(_id(scenario, group, groups)): _status(process, group) for group in groups}
    entries = [entry for group in groups for entry in _entries(scenario, process, group, at)]
    value = {"version": _VERSION[scenario.backend], "pg_config": config, "pg_status": status, "entries": entries}
    return pickle.dumps(value, protocol=2)


def _id(scenario: Scenario, group: Group, groups: tuple[Group, ...]) -> int:
    return 0 if group is scenario.all_ranks or group.guid == scenario.all_ranks.guid else 1 + groups.index(group)


@lru_cache(maxsize=4096)
def _config(group: Group) -> dict[str, Any]:
    return {"name": group.guid, "desc": group.name, "ranks": str(list(group.ranks))}


def _status(process: Process, group: Group) -> dict[str, int]:
    enqueued, completed = process.counts(group.guid)
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": enqueued if process.wait is None else process.done.get(group.guid, 0) + 1,
        "last_completed_collective": completed,
    }


def _entries(scenario: Scenario, process: Process, group: Group, at: float) -> list[dict[str, Any]]:
    enqueued, done = process.entered.get(group.guid, 0), process.done.get(group.guid, 0)
    numbers = range(max(1, done - _KEPT + 2), enqueued + 1)
    return [_entry(scenario, process, group, number, done, at) for number in numbers]


def _entry(scenario: Scenario, process: Process, group: Group, number: int, done: int, at: float) -> dict[str, Any]:
    """gloo's ``state`` stays ``scheduled`` and its times None; ``retired`` tells."""
    wait = process.wait
    open_one = wait is not None and wait.group.guid == group.guid and wait.seq == number
    op, numel = (wait.op, wait.numel) if wait is not None and open_one else ("ALLREDUCE", 1 << 20)
    completed, nccl = number <= done, scenario.backend == "nccl"
    state = ("completed" if completed else "started" if number == done + 1 else "scheduled") if nccl else "scheduled"
    created = int(1e9 * (at - scenario.timeout_s if wait is None else wait.since)) - (done + 1 - number) * 10**9
    names = {
        "ALLREDUCE": "all_reduce",
        "ALLGATHER": "all_gather",
        "BROADCAST": "broadcast",
        "REDUCE_SCATTER": "reduce_scatter",
    }
    return {
        "record_id": number - 1,
        "pg_id": _id(scenario, group, scenario.members[process.rank]),
        "process_group": (group.guid, group.name),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "is_p2p": False,
        "profiling_name": f"{scenario.backend}:{names.get(op, op.lower())}",
        "time_created_ns": created,
        "input_sizes": ((numel,),),
        "input_dtypes": ["Float"],
        "output_sizes": ((numel,),),
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": created + 10**6 if nccl and number <= done + 1 else None,
        "time_discovered_completed_ns": created + 2 * 10**6 if nccl and completed else None,
        "retired": completed,
        "timeout_ms": int(scenario.timeout_s * 1000),
        "frames": [],
    }
