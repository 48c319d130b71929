"""Facts in huge repetition: the first and the last of each kind and rank are kept, the rest counted."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Hashable, TypeVar

from nccl_slurm.model import Gap

__all__ = ["Kept"]

T = TypeVar("T")


class _Run(Generic[T]):
    __slots__ = ("first", "last", "left_out")

    def __init__(self) -> None:
        self.first: list[T] = []
        self.last: deque[T] | None = None  # most keys have few items, and an empty deque is large
        self.left_out = 0


class Kept(Generic[T]):
    """``each`` facts a key at most, ``total`` keys in all (a job can print any number of ranks). Order is kept."""

    def __init__(self, each: int = 16, unlabelled: int = 1024, total: int = 50_000) -> None:
        self._each, self._unlabelled, self._total = each, unlabelled, total
        self._runs: dict[tuple[str, Hashable, tuple[Any, ...]], _Run[tuple[int, T]]] = {}
        self._count = 0
        self._refused: dict[str, int] = {}

    def add(
        self, kind: str, owner: Hashable, distinct: tuple[Any, ...], item: T, *, labelled: bool, around: bool = False
    ) -> None:
        """``owner``: whose line it is (rank, process, file). Files without labels hold many ranks: more room.

        ``around``: says nothing of the failure itself. Every rank prints dozens of such lines when it starts; they may
        take half of the keys, so that they never crowd out what is printed at the end.
        """
        key = (kind, owner, distinct)
        half = (self._each if labelled else self._unlabelled) // 2
        run = self._runs.get(key)
        if run is None:
            if len(self._runs) >= (self._total // 2 if around else self._total):
                self._refused[kind] = self._refused.get(kind, 0) + 1
                return
            run = self._runs[key] = _Run()
        self._keep(run, half, item)

    def leave_out(self, kind: str, count: int) -> None:
        """Lines of ``kind`` that nobody has read: they are counted only."""
        self._refused[kind] = self._refused.get(kind, 0) + count

    def items(self) -> list[T]:
        found = [one for run in self._runs.values() for one in (*run.first, *(run.last or ()))]
        return [item for _, item in sorted(found, key=lambda one: one[0])]

    def gaps(self) -> list[Gap]:
        left = dict(self._refused)
        for (kind, _, _), run in self._runs.items():
            left[kind] = left.get(kind, 0) + run.left_out
        return [
            Gap(kind, f"{count} more lines of this kind are left out; the first and the last of each rank are kept")
            for kind, count in sorted(left.items())
            if count
        ]

    def _keep(self, run: _Run[tuple[int, T]], half: int, item: T) -> None:
        self._count += 1
        if len(run.first) < half:
            run.first.append((self._count, item))
            return
        if run.last is None:
            run.last = deque(maxlen=half)
        run.left_out += len(run.last) == half
        run.last.append((self._count, item))
