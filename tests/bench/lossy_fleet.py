"""A fleet with known truth: nodes that fail at a base rate, lemons that fail more often, jobs that are lost of it.

Jobs wait for their nodes in order (a large one holds the queue up), so about four fifths of the nodes are busy. A
failure ends the job; the verdict names the node in some of the cases, and the wrong one in a few.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from nccl_slurm.history.losses import Loss

__all__ = ["BASE_RATE", "Day", "Fleet", "days_of"]

#: Failures a node-hour: 6.5 in 1,000 node-days (Kokolis et al., arXiv 2410.21680, RSC-1).
BASE_RATE = 6.5 / 1000 / 24
_DAY = 24.0
_LARGEST = 512


@dataclass(frozen=True)
class Fleet:
    """``factor``: how many times the base rate a lemon fails. ``named``: share of losses whose verdict names a node.

    ``wrong``: share of these that name another node of the job.
    """

    seed: str
    nodes: int
    lemons: int
    factor: float
    named: float = 0.6
    wrong: float = 0.02

    @property
    def largest(self) -> int:
        """Nodes of the largest jobs: half of the fleet, rounded down to a power of two, 512 at most."""
        return min(_LARGEST, 1 << (self.nodes // 2).bit_length() - 1)


@dataclass
class Day:
    """What ended on one day: node → size of jobs → hours, and losses. Times in hours."""

    hours: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    losses: list[Loss] = field(default_factory=list)


def days_of(fleet: Fleet, days: int) -> Iterator[Day]:
    """Lemons are the nodes 0 … ``lemons`` - 1."""
    dice = random.Random(fleet.seed)
    free, running, now = list(range(fleet.nodes)), _Running(fleet, dice), 0.0
    waiting = _size(fleet, dice)
    for day in range(1, days + 1):
        ended = Day()
        while True:
            while waiting <= len(free):
                running.start(now, _taken(free, waiting, dice))
                waiting = _size(fleet, dice)
            if running.next_end() > day * _DAY:
                break
            now, nodes = running.end(ended)
            free.extend(nodes)
        yield ended


def _size(fleet: Fleet, dice: random.Random) -> int:
    """Powers of two; there are fewer large jobs, but they have most of the time (as on RSC-1)."""
    sizes = [1 << k for k in range(fleet.largest.bit_length())]
    return dice.choices(sizes, [size**-0.8 for size in sizes])[0]


def _taken(free: list[int], count: int, dice: random.Random) -> list[int]:
    for at in range(count):
        other = dice.randrange(at, len(free))
        free[at], free[other] = free[other], free[at]
    taken = free[:count]
    del free[:count]
    return taken


class _Running:
    def __init__(self, fleet: Fleet, dice: random.Random) -> None:
        self._fleet, self._dice, self._number = fleet, dice, 0
        self._heap: list[tuple[float, int, float, list[int], int | None]] = []

    def start(self, now: float, nodes: list[int]) -> None:
        """Median 8 hours, a week at most; it ends earlier if one of its nodes fails."""
        lasts = min(168.0, self._dice.lognormvariate(math.log(8.0), 1.0))
        bad = [node for node in nodes if node < self._fleet.lemons]
        weight = len(nodes) + (self._fleet.factor - 1) * len(bad)
        fails = self._dice.expovariate(weight * BASE_RATE)
        culprit = self._culprit(nodes, bad, weight) if fails < lasts else None
        self._number += 1
        heapq.heappush(self._heap, (now + min(lasts, fails), self._number, now, nodes, culprit))

    def _culprit(self, nodes: list[int], bad: list[int], weight: float) -> int:
        if bad and self._dice.random() < (self._fleet.factor - 1) * len(bad) / weight:
            return self._dice.choice(bad)
        return self._dice.choice(nodes)

    def next_end(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def end(self, day: Day) -> tuple[float, list[int]]:
        at, number, begin, nodes, culprit = heapq.heappop(self._heap)
        for node in nodes:
            day.hours[str(node)][len(nodes)] += at - begin
        if culprit is not None:
            day.losses.append(self._loss(at, number, nodes, culprit))
        return at, nodes

    def _loss(self, at: float, number: int, nodes: list[int], culprit: int) -> Loss:
        if len(nodes) > 1 and self._dice.random() >= self._fleet.named:
            return Loss(at, len(nodes), tuple(map(str, nodes)), len(nodes), str(number))
        named = self._dice.choice(nodes) if self._dice.random() < self._fleet.wrong else culprit
        return Loss(at, len(nodes), (str(named),), 1)
