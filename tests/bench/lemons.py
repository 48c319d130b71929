"""The blame test on fleets with known truth: wrong flags, and power beside an exact test that knows the base rate.

    python -m tests.bench.lemons            4 minutes of CPU
    python -m tests.bench.lemons --full     12 times as many fleets

Each fleet is looked at once a day for 90 days; a node that was flagged on any day counts as flagged. The exact test
knows the fleet's base rate and how often verdicts name a node, looks once, on the day that is told, and has no daily
looks to pay for; both control the false discovery rate at 5 %. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from nccl_slurm.history.lemons import Stage, flagged
from nccl_slurm.history.losses import Loss, Tally
from nccl_slurm.history.statistics import Part, adjusted, tail
from nccl_slurm.history.thresholds import Thresholds, load_thresholds
from tests.bench.figures import Figure, figure_of, show
from tests.bench.lossy_fleet import BASE_RATE, Day, Fleet, days_of

__all__ = ["CURVE", "Score", "main", "play"]

#: Days of which the power is told.
CURVE = (7, 14, 21, 28, 42, 60, 90)
_SIZES = (40, 200, 1000, 2000)
_FACTORS = (5.0, 10.0, 30.0)
_SHARES = (0.0, 0.01, 0.02)
#: Fleets of each size in the quick form: about as many nodes of each.
_FLEETS = {40: 30, 200: 5, 1000: 1, 2000: 1}
_FULL = 12
_DAYS = 90
_BARS = (28, 90)
#: A binomial of so many trials is a Poisson distribution to six digits.
_TRIALS = 10_000_000


Cell = tuple[int, float, float]  # nodes, share of lemons, factor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help=f"{_FULL} times as many fleets")
    parser.add_argument("--seed", type=int, default=1, help="of the first fleet; default 1")
    options = parser.parse_args(arguments)
    scores = _play_all(options.seed, _FULL if options.full else 1, load_thresholds())
    print(_by_size(scores), _curve(scores), sep="\n\n", end="\n\n")
    return show(list(_figures(scores)))


def _cells() -> list[Cell]:
    """Where there is no lemon, their rate makes no difference."""
    return [
        (nodes, share, factor)
        for nodes, share, factor in itertools.product(_SIZES, _SHARES, _FACTORS)
        if share or factor == _FACTORS[0]
    ]


def _play_all(seed: int, times: int, thresholds: Thresholds) -> dict[Cell, Score]:
    scores: dict[Cell, Score] = {}
    for cell in _cells():
        nodes, share, factor = cell
        scores[cell] = Score()
        for number in range(_FLEETS[nodes] * times):
            lemons = _whole(nodes * share, number)
            fleet = Fleet(f"{seed} {cell} {number}", nodes, lemons, factor)
            scores[cell].add(play(fleet, _DAYS, thresholds))
        print(f"{nodes} nodes, {share:.0%} lemons at {factor:g} x: done", file=sys.stderr)
    return scores


def _whole(lemons: float, number: int) -> int:
    """0.4 lemons a fleet: two in five fleets have one."""
    return int(lemons * (number + 1) + 1e-9) - int(lemons * number + 1e-9)


def _sum(scores: Iterable[Score]) -> Score:
    total = Score()
    for score in scores:
        total.add(score)
    return total


def _by_size(scores: Mapping[Cell, Score]) -> str:
    rows = []
    for nodes, factor in itertools.product(_SIZES, (0.0, *_FACTORS)):
        score = _sum(one for (n, share, f), one in scores.items() if n == nodes and (f if share else 0.0) == factor)
        kind = f"{score.lemons} at {factor:g} x" if factor else "none"
        rows.append((nodes, score.fleets, kind, *(cell for day in _BARS for cell in _told(score, day))))
    heads = ("nodes", "fleets", "lemons", *(f"{name}, day {day}" for day in _BARS for name in _HEADS))
    return tabulate(rows, headers=heads, disable_numparse=True, tablefmt="github")


_HEADS = ("wrong of flags", "mean wrong", "power", "exact")


def _told(score: Score, day: int) -> tuple[str, ...]:
    flags = score.wrong[day] + score.found[day]
    mean = f"{100 * score.proportions[day] / score.fleets:.1f} %"
    if not score.lemons:
        return f"{score.wrong[day]} of {flags}", mean, "", ""
    powers = score.found[day] / score.lemons, score.exact[day] / score.lemons
    return f"{score.wrong[day]} of {flags}", mean, *(f"{power:.2f}" for power in powers)


def _curve(scores: Mapping[Cell, Score]) -> str:
    rows = []
    for factor in _FACTORS:
        score = _sum(one for (_, share, f), one in scores.items() if f == factor and share)
        rows.append((f"{factor:g} x, this test", *(f"{score.power(day):.2f}" for day in CURVE)))
        rows.append((f"{factor:g} x, exact test", *(f"{score.exact[day] / score.lemons:.2f}" for day in CURVE)))
    heads = ("power by day", *map(str, CURVE))
    return tabulate(rows, headers=heads, disable_numparse=True, tablefmt="github")


def _figures(scores: Mapping[Cell, Score]) -> Iterator[Figure]:
    """Of all flags and of all finds: as if there were as many fleets of each size and kind."""
    for day in _BARS:
        wrong, found, exact = (_a_fleet(scores, name, day) for name in ("wrong", "found", "exact"))
        yield figure_of(f"wrong flags of all, day {day}", 100 * wrong / max(wrong + found, 1e-9), "%", 5.0)
        mean = _a_fleet(scores, "proportions", day) / len(scores)
        yield figure_of(f"wrong flags, mean of fleets, day {day}", 100 * mean, "%", 5.0)
        yield figure_of(f"power / exact test's, day {day}", found / max(exact, 1e-9), "", 0.9, at_least=True)


def _a_fleet(scores: Mapping[Cell, Score], name: str, day: int) -> float:
    return math.fsum(getattr(score, name)[day] / score.fleets for score in scores.values())


@dataclass
class Score:
    """Sums over fleets, by day. ``proportions``: of each fleet's flags, those that are wrong (0 where it has none)."""

    fleets: int = 0
    lemons: int = 0
    found: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    wrong: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    exact: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    exact_wrong: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    proportions: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: Score) -> None:
        self.fleets += other.fleets
        self.lemons += other.lemons
        for name in ("found", "wrong", "exact", "exact_wrong", "proportions"):
            for day, value in getattr(other, name).items():
                getattr(self, name)[day] += value

    def power(self, day: int) -> float:
        return self.found[day] / self.lemons if self.lemons else 0.0


class _Seen:
    """All that was seen until a day."""

    def __init__(self) -> None:
        self.hours: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.losses: list[Loss] = []

    def add(self, day: Day) -> None:
        self.losses.extend(day.losses)
        for node, hours in day.hours.items():
            mine = self.hours[node]
            for size, worked in hours.items():
                mine[size] += worked

    def tally(self) -> Tally:
        return Tally({node: dict(hours) for node, hours in self.hours.items()}, tuple(self.losses))


def play(fleet: Fleet, days: int, thresholds: Thresholds) -> Score:
    """One look a day."""
    truth = frozenset(map(str, range(fleet.lemons)))
    score, seen, flags = Score(1, fleet.lemons), _Seen(), frozenset[str]()
    stage = int(thresholds["blame.stage_d"])
    first: Tally | None = None
    for day, ended in enumerate(days_of(fleet, days), 1):
        seen.add(ended)
        now = seen.tally()
        flags |= flagged(_stages(now, first, day, thresholds), thresholds)
        first = now if day == stage else first
        score.found[day] = len(flags & truth)
        score.wrong[day] = len(flags - truth)
        score.proportions[day] = len(flags - truth) / max(1, len(flags))
        if day in CURVE:
            exact = _exact(fleet, now, thresholds["blame.fdr"])
            score.exact[day], score.exact_wrong[day] = len(exact & truth), len(exact - truth)
    return score


def _stages(now: Tally, first: Tally | None, day: int, thresholds: Thresholds) -> list[Stage]:
    ends = thresholds["blame.stage_d"], thresholds["blame.period_d"]
    return [Stage(first or now, ends[0] / min(day, ends[0])), Stage(now, ends[1] / day)]


def _exact(fleet: Fleet, tally: Tally, level: float) -> frozenset[str]:
    """What is flagged by the tail of the evidence at the fleet's own rate, with Benjamini-Hochberg, at one look."""
    pool = tally.pool()
    names = sorted(tally.hours)
    chances = [_exact_chance(fleet, tally.hours[name], pool.against.get(name, {})) for name in names]
    return frozenset(name for name, q in zip(names, adjusted(chances), strict=True) if q <= level)


def _exact_chance(fleet: Fleet, hours: Mapping[int, float], against: Mapping[tuple[int, int], int]) -> float:
    if sum(count / of for (_, of), count in against.items()) < 1:
        return 1.0
    parts = []
    for size, worked in hours.items():
        named = fleet.named if size > 1 else 1.0
        parts.append(_poisson(1, against.get((size, 1), 0), worked * BASE_RATE * named))
        if 1 < size <= 64:
            parts.append(_poisson(size, against.get((size, size), 0), worked * BASE_RATE * (1 - named) * size))
    return tail(tuple(parts))


def _poisson(of: int, count: int, mean: float) -> Part:
    return Part(of, count, _TRIALS, mean / _TRIALS)


if __name__ == "__main__":
    sys.exit(main())
