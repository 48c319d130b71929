"""Commands that measure bandwidth with nccl-tests: one node alone, and groups of nodes. Printed, never run.

``all pairs``: each node meets each other, in rounds whose pairs run at the same time (n - 1 rounds of n nodes).
``halving``: all nodes, their halves, quarters …: in log2(n) rounds a slow node is in the slow group each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.doctor.checks.node.machine import counts_parts, gres
from nccl_slurm.doctor.choose import answers
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.errors import InputError
from nccl_slurm.hosts import HOST, fold
from nccl_slurm.scheduler.client import NodeState

__all__ = ["WAYS", "Room", "alone", "halving", "lines", "pairs", "room", "together"]

WAYS = ("alone", "halving", "pairs")

_TEST = "all_reduce_perf -b 64M -e 8G -f 2"
_MINUTES = 10
#: EC2's p2.16xlarge and NVIDIA's DGX-2 have 16; where Slurm counts more, they are parts of GPUs (MIG).
_MOST = 16


@dataclass(frozen=True)
class Room:
    """``gpus``: of the node as Slurm counts them. ``why``: nothing can be run there; empty where it can."""

    gpus: int = 0
    why: str = ""


def room(node: NodeState | None, fields: Mapping[str, str]) -> Room:
    """``fields``: of ``scontrol -o show node``."""
    seen = Observation("", {}, slurm=fields)
    gpus = gres(seen) or 0
    if node is None or not answers(node) or "DRAIN" in node.flags:
        return Room(gpus, f"Slurm starts nothing there ({node.full_state if node else 'no such node'})")
    if counts_parts(seen) or gpus > _MOST:
        return Room(gpus, f"Slurm counts parts of GPUs there ({fields.get('Gres', '')})")
    return Room(gpus, "" if gpus else f"Slurm counts no GPU there (Gres={fields.get('Gres') or '(null)'})")


def lines(nodes: Mapping[str, Room], way: str) -> Iterator[str]:
    """For a person to run, with a comment before each round, and one for each node that is left out. Raises InputError
    where there is nothing to run."""
    known = {node: nodes[node].gpus for node in _safe(list(nodes)) if not nodes[node].why}
    least = 1 if way == "alone" else 2
    whys = [f"{node}: {one.why}" for node, one in nodes.items() if one.why]
    if len(known) < least:
        left = f"; left out: {'; '.join(whys[:3])}" if whys else ""
        hint = ", or measure one by --sweep alone" if known else ""
        raise InputError(f"--sweep {way}: {len(known)} of {len(nodes)} nodes can be measured{left}; name others{hint}")
    yield from (f"# left out: {why}" for why in whys)
    yield from _commands(list(known), way, known)


def _commands(safe: Sequence[str], way: str, known: Mapping[str, int]) -> Iterator[str]:
    if way == "alone":
        yield from (alone(node, known[node]) for node in safe)
        return
    rounds: Iterator[Sequence[Sequence[str]]] = pairs(safe) if way == "pairs" else halving(safe)
    for number, groups in enumerate(rounds, start=1):
        yield f"# round {number}: these can run at the same time"
        yield from (together(group, min(known[node] for node in group)) for group in groups)


def alone(node: str, gpus: int) -> str:
    """One process for all GPUs, so that no MPI is needed."""
    return f"srun {_where([node])} --ntasks=1 --gpus-per-node={gpus} {_TEST} -g {gpus} > nccl-tests-{node}.txt"


def together(nodes: Sequence[str], gpus: int) -> str:
    """A rank for each GPU; nccl-tests must be built with MPI."""
    name = "-".join(nodes) if len(nodes) < 3 else f"{nodes[0]}-and-{len(nodes) - 1}-more"
    ranks = f"--ntasks-per-node={gpus} --gpus-per-node={gpus} --mpi=pmix"
    return f"srun {_where(nodes)} {ranks} {_TEST} -g 1 > nccl-tests-{name}.txt"


def pairs(nodes: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Rounds of pairs without a common node. Of an odd number one node rests in each round."""
    seats: list[str | None] = [*_safe(nodes)]
    if len(seats) % 2:
        seats.append(None)
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        couples = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(one, other) for one, other in couples if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def halving(nodes: Sequence[str]) -> Iterator[list[list[str]]]:
    """Rounds of groups, down to groups of two or three."""
    groups = [_safe(nodes)]
    while groups and max(map(len, groups)) > 1:
        yield [group for group in groups if len(group) > 1]
        groups = [part for group in groups for part in _halves(group) if len(part) > 1]


def _halves(group: list[str]) -> list[list[str]]:
    middle = (len(group) + 1) // 2
    return [group[:middle], group[middle:]] if len(group) > 3 else []


def _safe(nodes: Sequence[str]) -> list[str]:
    """Only names that may stand in a command."""
    return [node for node in dict.fromkeys(nodes) if HOST.match(node)]


def _where(nodes: Sequence[str]) -> str:
    return f"--nodes={len(nodes)} --nodelist={fold(nodes)} --exclusive --time={_MINUTES}"
