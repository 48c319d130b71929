"""A simulated job as data: where its ranks run, what happens to them, and how much of it is written down."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nccl_slurm.testing.events import Event

__all__ = ["DEFAULT_GROUP", "Group", "Scenario", "blocks", "strides"]

#: GUID and description of torch's first process group: all ranks.
DEFAULT_GROUP = ("0", "default_pg")
#: 30 August 2024: in the past for every reader, and far from a change of the clocks.
_START = 1_725_000_000.0


@dataclass(frozen=True)
class Group:
    """A process group: its shared name (GUID), its description, its members as global ranks in the group's order."""

    guid: str
    name: str
    ranks: tuple[int, ...]


def blocks(world: int, size: int, name: str = "TENSOR_MODEL_PARALLEL_GROUP", *, first: int = 1) -> tuple[Group, ...]:
    """Neighbours: 0 to ``size`` - 1, and so on. ``first`` is the first GUID, as torch counts its groups."""
    starts = range(0, world, size)
    return tuple(Group(str(first + n), name, tuple(range(low, min(low + size, world)))) for n, low in enumerate(starts))


def strides(world: int, step: int, name: str = "DATA_PARALLEL_GROUP", *, first: int = 1) -> tuple[Group, ...]:
    """Every ``step``-th rank."""
    return tuple(Group(str(first + n), name, tuple(range(n, world, step))) for n in range(step))


@dataclass(frozen=True)
class Scenario:
    """One job.

    ``hosts``: node names, else n1, n2 …; ranks fill them one after the other. ``groups``: process groups beside that of
    all ranks; in each step a rank has one collective in each of its groups, in this order, and the last in the group of
    all.

    ``launcher``: ``torchrun`` (one task a node) or ``srun`` (one task a rank). ``output``: ``job`` (one file for all),
    ``label`` (that with ``srun -l`` or torchrun's ``--tee``), ``redirects`` (torchrun: each rank into files below its
    node's log folder; srun: a file a task). ``torch`` and ``nccl`` choose the forms of lines. ``dump_s``: how long a
    process waits for flight recorder dumps before it ends.

    ``skew_s``: clocks of nodes are off by up to so much, each by its own; ``offset_told``: the node knows its own.
    ``stamps``: NCCL's lines carry times. ``missing``: share of nodes without a record. ``missing_files``: share of
    ranks whose files are not there. ``dumps``: flight recorder dumps are written. ``record``: the program uses
    torchelastic's ``@record``. ``kill_on_bad_exit``: ``srun -K``. ``noise``: lines that look bad and mean nothing.
    ``detail``: TORCH_DISTRIBUTED_DEBUG=DETAIL.
    """

    world: int = 8
    per_node: int = 8
    events: Sequence[Event] = ()
    hosts: Sequence[str] = ()
    backend: str = "nccl"
    network: str = "IB"
    launcher: str = "torchrun"
    output: str = "job"
    torch: tuple[int, int] = (2, 8)
    nccl: tuple[int, int] = (2, 27)
    groups: Sequence[Group] = ()
    steps: int = 60
    step_s: float = 2.0
    timeout_s: float = 600.0
    dump_s: float = 15.0
    run_ahead: int = 0
    max_restarts: int = 0
    kill_on_bad_exit: bool = False
    record: bool = True
    dumps: bool = True
    detail: bool = False
    noise: bool = False
    stamps: bool = True
    skew_s: float = 0.0
    offset_told: bool = True
    missing: float = 0.0
    missing_files: float = 0.0
    job_id: int = 4711
    user: str = "alice"
    start: float = _START
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a scenario that can't be."""
        if self.world < 1 or self.per_node < 1:
            raise ValueError("a job has at least one rank and one rank a node")
        if self.hosts and len(self.hosts) * self.per_node < self.world:
            raise ValueError(f"{len(self.hosts)} hosts are too few for {self.world} ranks")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for event in self.events:
            self._check(event)

    def _check(self, event: Event) -> None:
        if any(not 0 <= rank < self.world for rank in event.ranks):
            raise ValueError(f"{event}: no such rank in a job of {self.world}")
        if any(host not in self.nodes for host in event.hosts):
            raise ValueError(f"{event}: no such host")
        if event.at is not None and not 0 <= event.at < self.steps:
            raise ValueError(f"{event}: the job has steps 0 to {self.steps - 1}")

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        count = -(-self.world // self.per_node)
        return tuple(self.hosts[:count]) if self.hosts else tuple(f"n{number}" for number in range(1, count + 1))

    @cached_property
    def all_ranks(self) -> Group:
        return Group(*DEFAULT_GROUP, tuple(range(self.world)))

    @cached_property
    def members(self) -> dict[int, tuple[Group, ...]]:
        """Rank → its groups, in the order in which a step uses them."""
        found: dict[int, list[Group]] = {rank: [] for rank in range(self.world)}
        for group in (*self.groups, self.all_ranks):
            for rank in group.ranks:
                found[rank].append(group)
        return {rank: tuple(groups) for rank, groups in found.items()}

    def host(self, rank: int) -> str:
        return self.nodes[rank // self.per_node]

    def local(self, rank: int) -> int:
        return rank % self.per_node

    def on(self, host: str) -> range:
        """Ranks of a node."""
        first = self.nodes.index(host) * self.per_node
        return range(first, min(first + self.per_node, self.world))

    def random(self, *what: object) -> random.Random:
        """A generator of its own for each use, so that one choice does not move the others."""
        return random.Random(f"{self.seed}/{what}")  # noqa: S311

    @cached_property
    def offsets(self) -> dict[str, float]:
        """Node → seconds by which its clock is ahead."""
        chance = self.random("skew")
        return {host: chance.uniform(-self.skew_s, self.skew_s) for host in self.nodes}

    @cached_property
    def lost_nodes(self) -> frozenset[str]:
        """Nodes whose record never comes."""
        chance = self.random("missing")
        return frozenset(host for host in self.nodes if chance.random() < self.missing)

    @cached_property
    def lost_ranks(self) -> frozenset[int]:
        """Ranks whose own files are not there."""
        chance = self.random("missing files")
        return frozenset(rank for rank in range(self.world) if chance.random() < self.missing_files)


_CHOICES = {
    "backend": ("nccl", "gloo"),
    "network": ("IB", "Socket", "AWS Libfabric"),
    "launcher": ("torchrun", "srun"),
    "output": ("job", "label", "redirects"),
}
