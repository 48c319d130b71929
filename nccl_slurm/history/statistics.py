"""The mathematics of the blame test: an exact tail, and the false discovery rate over many nodes.

Evidence comes in parts: a lost run that speaks against one node is 1, one that may be any of 8 nodes' is 1/8 for each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

__all__ = ["GRID", "LEAST", "Part", "adjusted", "attained", "bucket", "seen", "tail"]

#: No tail is told smaller: what a sum of floats next to 1 leaves of it is noise.
LEAST = 1e-12
#: (evidence below, cells of 1 unit of evidence): a grid that is finer where little was seen.
_GRIDS = ((8.0, 64), (32.0, 16), (128.0, 4), (math.inf, 1))
#: The finest: a loss that may be of more nodes than that counts nothing.
GRID = 64
_NOTHING = 1e-14


@dataclass(frozen=True)
class Part:
    """``count`` of ``trials`` losses, each of which spoke against ``of`` nodes, spoke against this one too.

    ``chance``: that one does, if all nodes are alike.
    """

    of: int
    count: int
    trials: int
    chance: float


def bucket(number: int) -> int:
    """The next power of two: evidence is never counted for more than it is."""
    return 1 << max(0, number - 1).bit_length()


def seen(parts: Iterable[Part]) -> float:
    """Evidence in lost runs."""
    return sum(part.count / part.of for part in parts)


@lru_cache(maxsize=16384)
def tail(parts: tuple[Part, ...]) -> float:
    """The chance of as much evidence or more, if all nodes are alike: a sum of weighted binomials, exactly.

    Weights are rounded down to a grid (1/64, coarser above 8 lost runs), in what was seen and in what is compared with.
    A millisecond; the same question comes again at each look at a stage that has ended.
    """
    grid = next(cells for below, cells in _GRIDS if seen(parts) < below)
    reached = sum(part.count * (grid // part.of) for part in parts)
    if reached == 0:
        return 1.0
    whole, fine = _chances(parts, grid, reached)
    upto = list(accumulate(whole))
    less = (chance * upto[min((reached - 1 - units) // grid, len(upto) - 1)] for units, chance in enumerate(fine))
    return min(1.0, max(LEAST, 1.0 - math.fsum(less)))


def attained(parts: tuple[Part, ...], level: float) -> float:
    """The chance that `tail` is at most ``level``, if all nodes are alike: less than that, since counts are whole."""
    for below, grid in _GRIDS[:-1]:
        tails = _tails(parts, grid, int(below) * grid)
        if tails[-1] <= level:
            return tails[bisect_left(tails, -level, key=lambda one: -one)]
    return level


@lru_cache(maxsize=4096)
def _tails(parts: tuple[Part, ...], grid: int, size: int) -> list[float]:
    """Chances of 1, 2 … ``size`` units of evidence or more."""
    whole, cells = _chances(parts, grid, size)
    spread = [0.0] * ((len(whole) - 1) * grid + 1)
    spread[::grid] = whole
    below = accumulate(_convolved(cells, 1, spread, size))
    tails = [max(0.0, 1.0 - chance) for chance in below]
    return tails + tails[-1:] * (size - len(tails))


def _chances(parts: Sequence[Part], grid: int, size: int) -> tuple[list[float], list[float]]:
    """Of 0, 1, 2 … losses that speak against one node, and of units of evidence by the others; up to ``size`` units."""
    whole, fine = [1.0], [1.0]
    for part in parts:
        step = grid // part.of
        if part.of == 1:
            whole = _convolved(whole, 1, _binomial(part, (size - 1) // grid), (size - 1) // grid + 1)
        elif step:
            fine = _convolved(fine, step, _binomial(part, (size - 1) // step), size)
    return whole, fine


def _binomial(part: Part, most: int) -> list[float]:
    """Chances of 0 … ``most`` losses; those beyond that hardly any has are left out, which makes a tail longer."""
    trials, chance = part.trials, part.chance
    if trials == 0 or chance <= 0.0:
        return [1.0]
    if chance >= 1.0:
        return [0.0] * min(trials, most + 1) + [1.0] * (trials <= most)
    whole, yes, no = math.lgamma(trials + 1), math.log(chance), math.log1p(-chance)
    terms: list[float] = []
    for k in range(min(trials, most) + 1):
        terms.append(math.exp(whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * yes + (trials - k) * no))
        if terms[-1] < _NOTHING and k > trials * chance:
            break
    return terms


def _convolved(cells: list[float], step: int, terms: Sequence[float], size: int) -> list[float]:
    """``cells`` with ``terms[k]`` at ``k * step``; what goes beyond ``size`` is dropped."""
    result = [0.0] * min(size, len(cells) + step * (len(terms) - 1))
    for k, term in enumerate(terms):
        if term == 0.0:
            continue
        here = slice(k * step, k * step + len(cells))
        result[here] = [cell + other * term for cell, other in zip(result[here], cells, strict=False)]
    return result


def adjusted(chances: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's q-values, in the order given: below 0.05 means flagged at a rate of 5 %."""
    order = sorted(range(len(chances)), key=lambda at: chances[at], reverse=True)
    result, least = [1.0] * len(chances), 1.0
    for rank, at in enumerate(order):
        least = min(least, chances[at] * len(chances) / (len(chances) - rank))
        result[at] = least
    return result
