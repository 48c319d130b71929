"""The exact tail against every outcome counted one by one, and the false discovery rate against a worked example."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nccl_slurm.history.statistics import LEAST, Part, adjusted, attained, bucket, seen, tail


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64), (65, 128), (512, 512)]
)
def test_sizes_are_rounded_up_to_powers_of_two(number: int, wanted: int) -> None:
    assert bucket(number) == wanted


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([], 1.0),
        ([Part(1, 0, 10, 0.1)], 1.0),
        ([Part(1, 1, 10, 0.1)], 1 - 0.9**10),
        ([Part(1, 10, 10, 0.1)], 1e-10),
        ([Part(1, 2, 2, 1.0)], 1.0),
        ([Part(2, 1, 1, 0.5)], 0.5),
        ([Part(1, 1, 1, 0.25), Part(2, 0, 1, 0.5)], 0.25),
        ([Part(1, 0, 1, 0.25), Part(2, 2, 2, 0.5)], 0.25 + 0.75 * 0.25),
        ([Part(128, 5, 5, 0.1)], 1.0),
        ([Part(1, 40, 40, 0.01)], LEAST),
    ],
    ids=range(10),
)
def test_the_tail_is_exact(parts: list[Part], wanted: float) -> None:
    assert tail(tuple(parts)) == pytest.approx(wanted, rel=1e-9)


part = st.builds(
    lambda of, trials, share, chance: Part(of, min(trials, round(share * trials)), trials, chance),
    st.sampled_from([1, 2, 4, 64]),
    st.integers(0, 4),
    st.floats(0, 1),
    st.floats(0.01, 0.99),
)


@given(st.lists(part, min_size=1, max_size=3))
def test_the_tail_is_the_sum_over_all_outcomes(parts: list[Part]) -> None:
    assume(seen(parts) < 8)  # from there on the grid is coarser
    wanted = 0.0
    for counts in itertools.product(*(range(one.trials + 1) for one in parts)):
        if sum(count / one.of for count, one in zip(counts, parts, strict=True)) >= seen(parts):
            wanted += math.prod(
                math.comb(one.trials, count) * one.chance**count * (1 - one.chance) ** (one.trials - count)
                for count, one in zip(counts, parts, strict=True)
            )
    assert tail(tuple(parts)) == pytest.approx(wanted, rel=1e-6, abs=1e-11)


@given(
    st.lists(part, min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 20),
    st.floats(0.01, 0.9),
)
def test_one_loss_more_is_never_less_suspicious(parts: list[Part], at: int, more: int, less: float) -> None:
    """As it happens: the machine's loss is one more of all, and what else grows is its peers' or shrinks its share."""
    at = min(at, len(parts) - 1)
    one = parts[at]
    before = tail(tuple(parts))
    worse = [*parts[:at], Part(one.of, one.count + 1, one.trials + 1, one.chance), *parts[at + 1 :]]
    assert tail(tuple(worse)) <= before * (1 + 1e-9) + LEAST
    rarer = [*parts[:at], Part(one.of, one.count, one.trials, one.chance * less), *parts[at + 1 :]]
    assert tail(tuple(rarer)) <= before * (1 + 1e-9) + LEAST
    common = [*parts[:at], Part(one.of, one.count, one.trials + more, one.chance), *parts[at + 1 :]]
    assert tail(tuple(common)) >= before * (1 - 1e-9) - LEAST


@pytest.mark.parametrize("evidence", [7, 8, 31, 32, 127, 128, 200])
def test_the_grid_gets_coarser_and_the_tail_stays_the_binomials(evidence: int) -> None:
    trials, chance = 4 * evidence, 0.2
    wanted = sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(evidence, trials + 1))
    assert tail((Part(1, evidence, trials, chance),)) == pytest.approx(max(wanted, LEAST), rel=1e-4, abs=LEAST)


def test_adjusted_by_hand() -> None:
    """Benjamini and Hochberg's own table, 1995, section 4.1: 15 tests, 4 rejected at 5 %."""
    chances = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344),
        *(0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000),
    ]
    assert sum(q <= 0.05 for q in adjusted(chances)) == 4
    assert adjusted(chances)[3] == pytest.approx(0.0095 * 15 / 4)
    assert adjusted([]) == []


@given(st.lists(st.floats(1e-9, 1.0), max_size=20), st.randoms(use_true_random=False))
def test_adjusted_keeps_the_order_and_does_not_mind_the_sequence(chances: list[float], dice: random.Random) -> None:
    q = dict(zip(chances, adjusted(chances), strict=True))
    assert all(chance <= q[chance] * (1 + 1e-12) and q[chance] <= 1.0 for chance in chances)
    assert [q[chance] for chance in sorted(chances)] == sorted(q[chance] for chance in chances)
    mixed = dice.sample(chances, len(chances))
    assert adjusted(mixed) == [q[chance] for chance in mixed]


@settings(max_examples=50, deadline=None)
@given(st.lists(part.filter(lambda one: one.trials < 4), min_size=1, max_size=2), st.floats(1e-6, 0.99))
def test_what_is_attained_is_a_tail_that_can_be_seen(parts: list[Part], level: float) -> None:
    """Of all outcomes those whose tail is at most the level; the sum of their chances is the largest such tail."""
    counts = itertools.product(*(range(one.trials + 1) for one in parts))
    outcomes = [tuple(Part(p.of, n, p.trials, p.chance) for n, p in zip(told, parts, strict=True)) for told in counts]
    wanted = max((t for t in map(tail, outcomes) if t <= level), default=0.0)
    assert attained(tuple(parts), level) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("level", "wanted"), [(1.0, 1 - 0.9**10), (0.6, 0.26390107), (0.2639, 0.07019083), (1e-3, 1.469e-4), (1e-10, 0)]
)
def test_attained_by_hand(level: float, wanted: float) -> None:
    """Ten trials of 10 %."""
    assert attained((Part(1, 3, 10, 0.1),), level) == pytest.approx(wanted, rel=1e-3, abs=1e-9)
