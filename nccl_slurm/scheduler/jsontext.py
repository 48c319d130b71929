"""Pure readers of Slurm's JSON: the same nouns as `text` and `jobtext` give, as far as JSON tells them.

`CliClient` asks for text: ``scontrol show nodes --json`` of 5,000 nodes takes ten times as long. These are for answers
that somebody has kept, and for tests, where JSON is a second witness of what the text says. Forms by release:

| what | 22.05 | 24.11, 26.05 |
|---|---|---|
| nodes | ``sinfo --json`` | ``scontrol show nodes --json`` |
| state | ``"idle"`` and ``state_flags`` | a list, base first |
| job's state | ``"FAILED"`` | a list |
| numbers | bare; 0 or null is *not set* | ``{"set", "infinite", "number"}``, some bare |
| exit code | live: a wait status; accounting: **0 without a signal**, so None here | ``return_code``, ``signal`` |
| accounting's user | null | name |
| failed node, restarts | not there | there |
| output's path | live: not there | live: 24.11 whole, 26.05 with its patterns; None here |

JSON has neither accounting's record number nor a live job's own word on the patterns in its paths: None here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccl_slurm import strict_json
from nccl_slurm.errors import SlurmRefused
from nccl_slurm.model import Step
from nccl_slurm.scheduler.client import FINAL_STATES, Accounted, LiveJob, NodeState
from nccl_slurm.scheduler.text import clean, configured_gpus, exit_pair, gpus_of, hosts_of, split_state, text_of

__all__ = ["read_accounting", "read_live", "read_nodes"]

_Item = Mapping[str, Any]


def read_nodes(data: bytes) -> tuple[NodeState, ...]:
    """``sinfo --json`` of 22.05, ``scontrol show nodes --json`` of later releases. Raises SlurmRefused."""
    return tuple(_read(data, "nodes", _node))


def read_live(data: bytes, *, gpus_tracked: bool) -> tuple[LiveJob, ...]:
    """``squeue --json``, or ``scontrol show jobs --json`` from 24 on. Raises SlurmRefused."""
    return tuple(_read(data, "jobs", lambda item: _live(item, gpus_tracked)))


def read_accounting(data: bytes, *, gpus_tracked: bool) -> tuple[Accounted, ...]:
    """``sacct -D --json``. Raises SlurmRefused."""
    found = _read(data, "jobs", lambda item: _accounted(item, gpus_tracked))
    return tuple(job for job in found if job.partition)


def _read(data: bytes, key: str, read: Any) -> list[Any]:
    try:
        return [read(item) for item in strict_json.loads(data)[key]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = (
            f"JSON of an unknown form ({type(error).__name__}: {str(error)[:100]}); is this version of Slurm supported?"
        )
        raise SlurmRefused(f"Slurm printed {why}") from None


def _node(item: _Item) -> NodeState:
    state = item["state"]
    words = [state, *item.get("state_flags", ())] if isinstance(state, str) else state
    base, flags = split_state("+".join(words))
    reason = clean(item["reason"]) or None
    return NodeState(
        name=clean(item["name"]),
        state=base,
        flags=flags,
        reason=reason,
        reason_by=text_of(item["reason_set_by_user"]) if reason else None,
        reason_at=_time(item["reason_changed_at"]) if reason else None,
        boot_time=_time(item["boot_time"]),
        slurmd_start=_time(item["slurmd_start_time"]),
        version=text_of(item.get("version") or item.get("slurmd_version")),
        gpus=configured_gpus(item["gres"]),
        hostname=text_of(item["hostname"]),
        address=text_of(item["address"]),
    )


def _live(item: _Item, gpus_tracked: bool) -> LiveJob:
    state = _state(item["job_state"])
    array, het = _number(item["array_job_id"]), _number(item["het_job_id"])
    waiting = item["array_task_string"]
    task = None if not array or waiting else _number(item["array_task_id"])
    offset = _number(item["het_job_offset"]) if het else None
    raw_id = int(item["job_id"])
    return LiveJob(
        raw_id=raw_id,
        id=_shown(raw_id, array, task, het, offset, waiting),
        name=clean(item["name"]),
        state=state,
        array_job_id=array or None,
        array_task_id=task,
        het_job_id=het or None,
        het_offset=offset,
        user=text_of(item["user_name"]),
        uid=item["user_id"],
        partition=text_of(item["partition"]),
        reason=text_of(item["state_reason"]),
        node_list=text_of(item["nodes"]) or "",
        nodes=hosts_of(item["nodes"]),
        batch_host=text_of(item["batch_host"]),
        batch=bool(item["batch_flag"]),
        workdir=item["current_working_directory"] or None,
        comment=item["comment"] or "",
        submit=_time(item["submit_time"]),
        start=_time(item["start_time"]),
        end=_time(item["end_time"]) if state in FINAL_STATES else None,
        restarts=item["restart_cnt"],
        exit=_exit(item["exit_code"]),
        derived_exit=_exit(item["derived_exit_code"]),
        gpus=gpus_of(item["tres_alloc_str"], tracked=gpus_tracked),
    )


def _accounted(item: _Item, gpus_tracked: bool) -> Accounted:
    raw_id, array, het = int(item["job_id"]), item["array"]["job_id"], item["het"]["job_id"]
    task = _number(item["array"]["task_id"]) if array else None
    offset = (_number(item["het"]["job_offset"]) or 0) if het else None
    killer = text_of(item["kill_request_user"])
    return Accounted(
        raw_id=raw_id,
        id=_shown(raw_id, array, task, het, offset, item["array"]["task"]),
        cluster=clean(item["cluster"]),
        state=_state(item["state"]["current"]),
        cancelled_by=killer,
        submit=_time(item["time"]["submission"]),
        start=_time(item["time"]["start"]),
        end=_time(item["time"]["end"]),
        exit=_exit(item["exit_code"]),
        derived_exit=_exit(item["derived_exit_code"]),
        node_list=text_of(item["nodes"]) or "",
        nodes=hosts_of(item["nodes"]),
        user=text_of(item["user"]),
        partition=text_of(item["partition"]),
        name=clean(item["name"]),
        gpus=_gpus(item["tres"]["allocated"], gpus_tracked),
        failed_node=text_of(item.get("failed_node")),
        restarts=item.get("restart_cnt"),
        reason=text_of(item["state"]["reason"]),
        steps=tuple(_step(raw_id, step) for step in item["steps"]),
    )


def _step(job: int, item: _Item) -> Step:
    code, _, signal = (_exit(item["exit_code"]) or "0:0").partition(":")
    own = str(item["step"]["id"]).rpartition(".")[2]
    return Step(
        id=f"{job}.{own}",
        name=clean(item["step"]["name"]),
        state=_state(item["state"]),
        exit=int(code),
        signal=int(signal),
        nodes=tuple(map(clean, item["nodes"]["list"])),
        start=_time(item["time"]["start"]),
        end=_time(item["time"]["end"]),
    )


def _shown(raw_id: int, array: int | None, task: int | None, het: int | None, offset: int | None, waits: Any) -> str:
    if het:
        return f"{het}+{offset}"
    if not array:
        return str(raw_id)
    return f"{array}_{task}" if task is not None else f"{array}_[{waits}]"


def _state(value: Any) -> str:
    """A flag (``COMPLETING``, ``REQUEUED``) comes after the base; Slurm's text has the flag in place of the base."""
    words = [value] if isinstance(value, str) else value
    return str(words[min(1, len(words) - 1)]).upper()


def _number(value: Any) -> int | None:
    if isinstance(value, Mapping):
        return int(value["number"]) if value["set"] else None
    return None if value is None else int(value)


def _time(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _exit(value: Any) -> str | None:
    """None for accounting of 22.05, which says ``SUCCESS`` and 0 of whatever no signal ended, failed jobs too."""
    if not isinstance(value, Mapping):
        return exit_pair(str(value))
    signal = value.get("signal", {})
    number = _number(signal.get("id", signal.get("signal_id"))) or 0
    if not isinstance(value["return_code"], Mapping):
        return f"0:{number}" if number else None
    return f"{_number(value['return_code']) or 0}:{number}"


def _gpus(tres: Any, tracked: bool) -> int | None:
    words = [f"{one['type']}/{one['name']}={one['count']}" for one in tres if one["name"]]
    return gpus_of(",".join(["node=1", *words]), tracked=tracked) if tres else None
