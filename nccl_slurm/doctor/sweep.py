"""Commands that measure bandwidth with nccl-tests: one node alone, and groups of nodes. Printed, never run.

``all pairs``: each node meets each other, in rounds whose pairs run at the same time (n - 1 rounds of n nodes).
``halving``: all nodes, their halves, quarters …: in log2(n) rounds a slow node is in the slow group each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nccl_slurm.hosts import HOST, fold

__all__ = ["WAYS", "alone", "halving", "lines", "pairs", "together"]

WAYS = ("alone", "halving", "pairs")

_TEST = "all_reduce_perf -b 64M -e 8G -f 2"
_MINUTES = 10


def lines(nodes: Sequence[str], way: str, gpus: Mapping[str, int] | None = None) -> Iterator[str]:
    """For a person to run, with a comment before each round. ``gpus``: of each node, 8 where it is not told."""
    known = gpus or {}
    safe = _safe(nodes)
    if way == "alone":
        yield from (alone(node, known.get(node, 8)) for node in safe)
        return
    rounds: Iterator[Sequence[Sequence[str]]] = pairs(safe) if way == "pairs" else halving(safe)
    for number, groups in enumerate(rounds, start=1):
        yield f"# round {number}: these can run at the same time"
        yield from (together(group, min(known.get(node, 8) for node in group)) for group in groups)


def alone(node: str, gpus: int = 8) -> str:
    """One process for all GPUs, so that no MPI is needed."""
    return f"srun {_where([node])} --ntasks=1 --gpus-per-node={gpus} {_TEST} -g {gpus} > nccl-tests-{node}.txt"


def together(nodes: Sequence[str], gpus: int = 8) -> str:
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
