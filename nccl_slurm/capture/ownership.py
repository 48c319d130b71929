"""Which kernel events are this run's. On a node that jobs share, another job's Xid must not accuse this run's GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from nccl_slurm.capture.gpu import bus_id
from nccl_slurm.model import Fact, Gap

__all__ = ["Holding", "gpus_of_run", "own_events"]

#: Kinds whose ``pci`` is that of a GPU (an SXid's is that of a switch, which all GPUs share).
_GPU_KINDS = ("kernel.xid", "kernel.gpu-")
_OOM_USER = re.compile(r"\b(?:UID:|uid=)([0-9]{1,10})\b")
_OOM_JOB = re.compile(r"task_memcg=[^,]{0,400}/job_([0-9]{1,18})(?:/|,|$)")
_NUMBERS = re.compile(r"[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*\Z")


class Holding(NamedTuple):
    """What the run held. ``gpus``: bus ids (``0000:a1:00``), None where unknown; ``alone``: no other run overlapped."""

    gpus: frozenset[str] | None
    alone: bool
    job_id: int
    uid: int | None


def gpus_of_run(env: Mapping[str, str], before: Sequence[Mapping[str, Any]] | None) -> frozenset[str] | None:
    """Bus ids of SLURM_JOB_GPUS, which counts as /dev/nvidiaN does. None: not told, or a number has no known GPU."""
    numbers = _numbers(env.get("SLURM_JOB_GPUS", ""))
    if not numbers or not before:
        return None
    key = "minor" if all(gpu.get("minor") is not None for gpu in before) else "index"
    by_number = {gpu.get(key): gpu.get("bus_id") for gpu in before}
    found = [by_number.get(number) for number in numbers]
    return frozenset(str(one) for one in found) if all(found) else None


def _numbers(value: str) -> list[int]:
    """``0,1``, ``0-3`` → numbers; anything else (GPU uuids, MIG) → none."""
    numbers: list[int] = []
    if _NUMBERS.match(value):
        for part in value.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def own_events(facts: Iterable[Fact], held: Holding, gaps: list[Gap]) -> list[Fact]:
    """Events of others are left out and counted; those that can't be told are kept as context that accuses nobody."""
    kept, others, untold = [], 0, 0
    for fact in facts:
        own = _is_own(fact, held)
        if own is False:
            others += 1
        elif own:
            kept.append(fact)
        else:
            untold += 1
            kept.append(replace(fact, role="context", hint=None))
    if others:
        gaps.append(Gap("kernel events of other runs", f"{others} left out: another run's GPU or user on this node"))
    if untold:
        gaps.append(Gap("kernel event owner", f"{untold} kept as context: another run was on this node as well"))
    return kept


def _is_own(fact: Fact, held: Holding) -> bool | None:
    """None: can't be told."""
    gpu = bus_id(str(fact.data.get("pci")))
    if gpu is not None and fact.kind.startswith(_GPU_KINDS) and held.gpus is not None:
        return gpu in held.gpus
    if held.alone:
        return True
    job, user = _OOM_JOB.search(fact.text), _OOM_USER.search(fact.text)
    if job:
        return int(job.group(1)) == held.job_id
    if user and held.uid is not None and int(user.group(1)) != held.uid:
        return False
    return None if fact.role == "cause" or fact.hint is not None else True
