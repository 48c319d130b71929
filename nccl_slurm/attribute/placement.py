"""Where each rank ran: what Slurm's tasks add to the table of ranks, and what in it can't all be true.

A task is a rank only without torchrun between them (`Tasks.are_ranks`); task_prolog wrote on the task's node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import rank_list
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.attribute.tasks import Tasks, world_told
from nccl_slurm.model import Evidence, Fact, Gap, Rank

__all__ = ["placed"]


def placed(evidence: Evidence, sorts: Sorts | None = None) -> Evidence:
    """With host, local rank and process of each task in the table of ranks. What contradicts itself is a gap."""
    found = _with_tasks(evidence, Sorts(evidence.facts) if sorts is None else sorts)
    return replace(found, gaps=(*found.gaps, *_on_one_gpu(found.ranks)))


def _on_one_gpu(ranks: Iterable[Rank]) -> list[Gap]:
    """Programs may share a GPU; else one of the ranks is told wrongly."""
    users: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for rank in ranks:
        if rank.gpu is not None:
            users[rank.host, rank.gpu].append(rank.rank)
    return [
        Gap(rank_list(found), f"all on GPU {gpu} of {host}: what the kernel says of it fits any of them")
        for (host, gpu), found in users.items()
        if len(found) > 1 and host is not None
    ]


def _with_tasks(evidence: Evidence, sorts: Sorts) -> Evidence:
    """A word of the rank's own lines against its task's stands, with a gap."""
    started = sorts.of_kind(reading.TASK)
    if not started or not Tasks(sorts, evidence.job, world_told(evidence)).are_ranks:
        return evidence
    table = {rank.rank: rank for rank in evidence.ranks}
    gaps: list[Gap] = []
    for row in _rows(started):
        known = table.get(row.rank)
        gaps += _against(known, row) if known else ()
        table[row.rank] = _filled(known, row) if known else row
    ranks = tuple(table[number] for number in sorted(table))
    return replace(evidence, ranks=ranks, gaps=(*evidence.gaps, *gaps))


def _rows(started: Iterable[Fact]) -> Iterable[Rank]:
    for fact in started:
        task = reading.number(fact.data, "procid")
        if task is not None and str(fact.data.get("step", "")).isdecimal():
            local, pid = reading.number(fact.data, "localid"), reading.number(fact.data, "pid")
            yield Rank(task, fact.host, local, pid=pid, files=(fact.file,) if fact.file else ())


def _filled(known: Rank, row: Rank) -> Rank:
    keys = ("host", "local_rank", "pid")
    return replace(known, **{key: getattr(row, key) for key in keys if getattr(known, key) is None})


def _against(known: Rank, row: Rank) -> list[Gap]:
    return [
        Gap(f"rank {row.rank}", f"{key}: {getattr(known, key)} by its lines, {getattr(row, key)} by Slurm's task")
        for key in ("host", "local_rank")
        if None not in (getattr(known, key), getattr(row, key)) and getattr(known, key) != getattr(row, key)
    ]
