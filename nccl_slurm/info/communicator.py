"""NCCL's communicators as the Init lines tell them: who began to make one, and who finished.

``Init START`` is printed from 2.18 on; before that a communicator has COMPLETE lines alone and nothing can be missing.
A pointer (``comm``) is good within one process; ``commId`` is shared by all ranks. Splits have none from 2.23 on: they
are known by their parent, the number of the split and the colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nccl_slurm.info.teller import Teller, teller
from nccl_slurm.model import Fact

__all__ = ["COMPLETE", "KINDS", "START", "Communicator", "Spans", "communicators"]

START, COMPLETE = "nccl.init-start", "nccl.init-complete"
KINDS = frozenset({START, COMPLETE})
#: A split of a split of …; deeper than this is no real program.
_DEPTH_MAX = 8
_NEVER = 1 << 62

#: File, host and process id of a line: pointers mean something within one of these alone.
_Process = tuple[str | None, str | None, object]


@dataclass
class Communicator:
    """``began``, ``ended``: rank in the communicator → its START and COMPLETE line."""

    name: str
    size: int
    began: dict[int, Fact] = field(default_factory=dict)
    ended: dict[int, Fact] = field(default_factory=dict)

    @property
    def stopped(self) -> list[int]:
        """Ranks in the communicator that began and never finished."""
        return sorted(self.began.keys() - self.ended.keys())

    @property
    def unseen(self) -> list[int]:
        """Ranks in the communicator without any Init line; empty where these are not a few of many."""
        seen = self.began.keys() | self.ended.keys()
        if not len(seen) < self.size < 2 * len(seen):
            return []
        return [rank for rank in range(self.size) if rank not in seen]

    def who(self, rank: int) -> Teller:
        """The global rank or the host behind a rank that printed Init lines."""
        fact = self.began.get(rank) or self.ended[rank]
        found = teller(fact)
        return f"rank {rank} of {self.name}" if found is None else found


def communicators(facts: Iterable[Fact]) -> list[Communicator]:
    """In the order of their first lines."""
    lines = [fact for fact in facts if fact.kind in KINDS]
    names = _Names(lines)
    found: dict[tuple[str, int], Communicator] = {}
    for fact in lines:
        rank, size = fact.data.get("group_rank"), fact.data.get("nranks")
        name = names.of(fact)
        if name is None or not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
            continue
        one = found.get((name, size)) or found.setdefault((name, size), Communicator(name, size))
        (one.began if fact.kind == START else one.ended).setdefault(rank, fact)
    return list(found.values())


class Spans:
    """Which communicator a line between Init START and COMPLETE belongs to.

    Channels carry no pointer. A process with one communicator has no others; of several the one whose init is going on.
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        lines = [fact for fact in facts if fact.kind in KINDS]
        names = _Names(lines)
        self._spans: dict[_Process, dict[str, list[int]]] = {}
        for fact in lines:
            name = names.of(fact)
            if name is not None and fact.line is not None:
                own = self._spans.setdefault(_process(fact), {}).setdefault(name, [_NEVER, _NEVER])
                place = 0 if fact.kind == START else 1
                own[place] = min(own[place], fact.line)

    def of(self, fact: Fact) -> str | None:
        own = self._spans.get(_process(fact), {})
        if len(own) == 1:
            return next(iter(own))
        line = fact.line
        inside = [name for name, (start, end) in own.items() if line is not None and start < line < end]
        return inside[0] if len(inside) == 1 else None


def _process(fact: Fact) -> _Process:
    return fact.file, fact.host, fact.data.get("writer_pid")


class _Names:
    """Shared names of communicators."""

    def __init__(self, lines: Iterable[Fact]) -> None:
        """Only a split is known by its parent's pointer."""
        told = list(lines)
        self._made: dict[tuple[_Process, str], Fact] = {}
        for fact in told if any("parent" in fact.data for fact in told) else ():
            for key in _pointer(fact, "comm"):
                self._made.setdefault((_process(fact), key), fact)

    def of(self, fact: Fact, depth: int = 0) -> str | None:
        data = fact.data
        shared = data.get("comm_id")
        if shared:
            return str(shared)
        if "parent" not in data or depth > _DEPTH_MAX:
            return None
        parents = [self._made.get((_process(fact), key)) for key in _pointer(fact, "parent")]
        parent = self.of(parents[0], depth + 1) if parents and parents[0] is not None else None
        return None if parent is None else f"{parent}/{_text(data, 'split')}{_text(data, 'color')}"


def _pointer(fact: Fact, key: str) -> Iterator[str]:
    if fact.data.get(key):
        yield str(fact.data[key])


def _text(data: Mapping[str, object], key: str) -> str:
    return f"{key}{data[key]}" if data.get(key) is not None else ""
