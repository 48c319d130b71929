"""The ranks of a job as their own processes show them: environment, limits, libraries. Never raises on junk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nccl_slurm.doctor.check import Finding, NotObserved
from nccl_slurm.doctor.checks.job.ours import ours
from nccl_slurm.doctor.observation import JobObserved, Observation
from nccl_slurm.doctor.read.procfs import Limit, limits
from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.parse.prefix import MAX_RANK

__all__ = [
    "LOOPBACK",
    "Ranks",
    "Seen",
    "about",
    "at_home",
    "number",
    "of_node",
    "programs",
    "ranks",
    "unseen",
    "whose",
    "whose_nodes",
]

#: Launchers' words for the global rank, the surest first. PMI's are last: an interactive shell's step may have them.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMIX_RANK", "PMI_RANK")
#: An address by which a node names itself alone.
LOOPBACK = re.compile(r"localhost(?:\.localdomain)?|127\.[0-9.]{1,11}|::1", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,8}\Z", re.ASCII)


@dataclass(frozen=True)
class Seen:
    """One process. ``rank`` None: it has none that is told. ``told_by``: the variable that tells it. ``age``: seconds
    since its start, None where that is not told."""

    node: str
    pid: int
    rank: int | None
    told_by: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    libraries: Sequence[str] = ()
    uid: int | None = None
    age: float | None = None

    @cached_property
    def ours(self) -> frozenset[str]:
        """Variables that our hooks set."""
        return ours(self.environment)

    @cached_property
    def chosen(self) -> Mapping[str, str]:
        """The environment without what our hooks set."""
        own = self.ours
        return {name: value for name, value in self.environment.items() if name not in own}

    @property
    def world(self) -> int | None:
        return number(self.environment.get("WORLD_SIZE") or self.environment.get("OMPI_COMM_WORLD_SIZE"))

    @property
    def name(self) -> str:
        return f"{self.node} pid {self.pid}"


@dataclass(frozen=True)
class Ranks:
    """``unseen``: node → why none of its ranks could be read. ``idle``: nodes that certainly have none. ``more``: some
    were left out, on a node or with their nodes."""

    seen: Sequence[Seen]
    unseen: Mapping[str, str]
    more: bool = False
    idle: Sequence[str] = ()

    @property
    def whole(self) -> bool:
        """All processes of the job on all its nodes were there to be read."""
        return not self.unseen and not self.more

    @property
    def numbered(self) -> list[Seen]:
        return [one for one in self.seen if one.rank is not None]


def ranks(observed: JobObserved) -> Ranks:
    """Raises NotObserved where no rank was seen anywhere."""
    observed.ranks()
    processes: list[Seen] = []
    unseen = dict(observed.fleet.silent)
    more = observed.part
    for name, node in sorted(observed.fleet.nodes.items()):
        try:
            told = _told(node)
        except NotObserved as error:
            unseen[name] = str(error)
            continue
        more = more or bool(told.get("more")) or bool(told.get("unreadable"))
        whole = [row for row in told["ranks"] if not (isinstance(row, dict) and row.get("cut"))]
        if len(whole) < len(told["ranks"]):
            unseen[name] = f"{len(told['ranks']) - len(whole)} have more settings or libraries than are read"
        processes += of_node(name, whole, node.at)
    seen = _real(processes)
    if not seen:
        raise NotObserved("no rank of the job was seen on its nodes (ended, or not yours)")
    without = sorted(observed.fleet.nodes.keys() - unseen.keys() - {one.node for one in seen})
    idle = [name for name in without if _sees_all(observed.fleet.nodes[name])]
    hidden = {name: observed.fleet.nodes[name].user for name in without if name not in idle}
    whys = {name: f"no rank of the job is there, or none that {user} may read" for name, user in hidden.items()}
    return Ranks(seen, {**unseen, **whys}, more, idle)


def _real(processes: Sequence[Seen]) -> list[Seen]:
    """Those that a launcher numbered; else those with NCCL; else all. Jobs have helpers that look at GPUs too."""
    numbered = [one for one in processes if one.told_by in _RANK[:2]]
    with_nccl = [one for one in processes if _has_nccl(one)]
    return _without_helpers(numbered) or with_nccl or list(processes)


def _without_helpers(numbered: Sequence[Seen]) -> list[Seen]:
    """A daemon that a rank started (of a tracker, of a profiler) has its environment, and no NCCL."""
    ranked = {_self(one) for one in numbered if _has_nccl(one)}
    return [one for one in numbered if _has_nccl(one) or _self(one) not in ranked]


def _self(one: Seen) -> tuple[str, int | None, tuple[str | None, ...]]:
    return one.node, one.rank, _door(one)


def _has_nccl(one: Seen) -> bool:
    return any("/libnccl.so" in path for path in one.libraries)


def unseen(check: str, found: Ranks) -> Iterable[Finding]:
    """One for each reason why nodes could not be compared."""
    reasons: dict[str, list[str]] = {}
    for node, why in found.unseen.items():
        reasons.setdefault(why, []).append(node)
    for why, nodes in reasons.items():
        yield Finding(check, "UNKNOWN", f"the ranks of {fold(nodes)} were not seen: {why}", nodes=sorted(nodes))


def whose(processes: Iterable[Seen]) -> str:
    """``rank 7 (n2)``, ``ranks 0-7 (n[1-2])``; processes without a rank by node and pid."""
    told = list(processes)
    numbers = [one.rank for one in told if one.rank is not None]
    others = [one.name for one in told if one.rank is None]
    parts = (
        [f"rank{'s' if len(set(numbers)) > 1 else ''} {fold_numbers(numbers)} ({_nodes_of(told)})"] if numbers else []
    )
    return ", ".join([*parts, *others[:4], *(["others"] if len(others) > 4 else [])])


def whose_nodes(processes: Iterable[Seen]) -> list[str]:
    return sorted({one.node for one in processes})


def programs(seen: Iterable[Seen]) -> list[list[Seen]]:
    """Ranks that belong together: those of one step and one rendezvous port; and those of several which have no number
    twice, as where a program is started node by node."""
    parts: dict[tuple[str, ...], list[Seen]] = {}
    for one in seen:
        key = tuple(one.environment.get(name, "") for name in ("SLURM_STEP_ID", "MASTER_PORT"))
        parts.setdefault(key, []).append(one)
    found: list[list[Seen]] = []
    for _, members in sorted(parts.items()):
        numbers = {one.rank for one in members}
        joined = next((each for each in found if numbers.isdisjoint(one.rank for one in each)), None)
        if joined is None:
            found.append(members)
        else:
            joined += members
    return found


def about(name: str, one: Seen) -> dict[str, str]:
    """Values for commands that look at the same process. ``host``: where it is."""
    return {"name": name, "host": one.node, "pid": str(one.pid)}


def at_home(seen: Iterable[Seen]) -> list[Seen]:
    """Ranks whose MASTER_ADDR is a loopback on the node of their own rank 0. It listens at all addresses of its node,
    so they meet it there, while others come to it by the node's name."""
    local = [one for one in seen if LOOPBACK.fullmatch(one.environment.get("MASTER_ADDR", "").strip())]
    hosts = {(one.node, *_door(one)) for one in local if one.rank == 0}
    return [one for one in local if (one.node, *_door(one)) in hosts]


def _door(one: Seen) -> tuple[str | None, ...]:
    return tuple(one.environment.get(name) for name in ("MASTER_PORT", "WORLD_SIZE", "SLURM_STEP_ID"))


def number(text: str | None) -> int | None:
    """A count or a rank; None for what is none."""
    return int(text) if text and _NUMBER.match(text) and int(text) <= MAX_RANK else None


def _nodes_of(processes: Iterable[Seen]) -> str:
    return fold(one.node for one in processes if one.rank is not None)


def _sees_all(node: Observation) -> bool:
    """Root, or a step of the job by its owner: /proc may hide the processes of others altogether (proc(5), hidepid)."""
    return node.uid == 0 or node.way == "job-step"


def _told(node: Observation) -> Mapping[str, Any]:
    told = node.reader("ranks")
    if not isinstance(told, dict) or not isinstance(told.get("ranks"), list):
        raise NotObserved("ranks: the node's answer is none")
    return told


def of_node(node: str, rows: Sequence[Any], at: float = 0.0) -> list[Seen]:
    """Rows of `gather.ranks` without launchers: a process that has children among these and no rank of its own.
    ``at``: the node's clock, where it is known."""
    good = [row for row in rows if isinstance(row, dict) and isinstance(row.get("pid"), int)]
    parents = {row["parent"] for row in good if isinstance(row.get("parent"), int)}
    made = [_seen(node, row, at, launcher=row["pid"] in parents) for row in good]
    return [one for one, row in zip(made, good, strict=True) if one.rank is not None or row["pid"] not in parents]


def _seen(node: str, row: Mapping[str, Any], at: float, *, launcher: bool) -> Seen:
    told = row.get("environment")
    environment = {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
    libraries = row.get("libraries")
    start = row.get("start")
    names = _RANK[:2] if launcher else _RANK
    told_by = next((name for name in names if number(environment.get(name)) is not None), "")
    return Seen(
        node=node,
        pid=row["pid"],
        rank=number(environment.get(told_by)) if told_by else None,
        told_by=told_by,
        environment=environment,
        limits=limits(str(row.get("limits") or "")),
        libraries=[str(one) for one in libraries] if isinstance(libraries, list) else [],
        uid=row["uid"] if isinstance(row.get("uid"), int) else None,
        age=max(0.0, at - start) if at and isinstance(start, (int, float)) and start > 0 else None,
    )
