"""Who is flagged on one look, and who never is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm.history.lemons import Period, Suspicion, excluded, period_of, suspicions
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.thresholds import load_thresholds
from tests.bench.lemons import Score, play
from tests.bench.lossy_fleet import Fleet
from tests.history.fleets import DAY, START, Run, fleet, lost, well

LIMITS = load_thresholds()
NODES = tuple(f"n{number:02}" for number in range(50))
PEERS = [well(day + 0.5, node) for day in range(0, 90, 3) for node in NODES]
A_FEW = [lost(9.0 * at + 1, node, named=node) for at, node in enumerate(NODES[10:19])]


def look(runs: list[Run], day: float = 89.0) -> dict[str, Suspicion]:
    return {one.node: one for one in suspicions(fleet(runs, NODES), START + day * DAY, LIMITS)}


def flagged(runs: list[Run], day: float = 89.0) -> set[str]:
    return {name for name, one in look(runs, day).items() if one.flagged}


def losses_of(node: str, count: int, first: float = 2.0) -> list[Run]:
    """A day or more between two."""
    return [lost(first + 80.0 / max(count, 1) * at, node, named=node) for at in range(count)]


@pytest.mark.parametrize(
    ("count", "wanted"), [(0, set()), (1, set()), (2, set()), (6, {"n00"}), (12, {"n00"}), (40, {"n00"})]
)
def test_a_node_is_flagged_by_the_runs_that_it_loses(count: int, wanted: set[str]) -> None:
    assert flagged([*PEERS, *A_FEW, *losses_of("n00", count)]) == wanted


def test_a_flag_says_investigate_and_nothing_ever_says_more() -> None:
    found = look([*PEERS, *A_FEW, *losses_of("n00", 80)])
    assert found["n00"].action == "investigate"
    assert {one.action for name, one in found.items() if name != "n00"} == {"none"}


def test_evidence_and_expectation_are_told_in_runs() -> None:
    one = look([*PEERS, *A_FEW, *losses_of("n00", 6)])["n00"]
    assert one.evidence == 6.0
    assert one.expected == pytest.approx(15 * one.hours / sum(o.hours for o in look(PEERS + A_FEW).values()), rel=0.2)
    assert one.chance <= one.q < 0.01


def test_the_most_suspicious_comes_first() -> None:
    found = suspicions(
        fleet([*PEERS, *A_FEW, *losses_of("n07", 9), *losses_of("n03", 6)], NODES), START + 89 * DAY, LIMITS
    )
    assert [one.node for one in found[:2]] == ["n07", "n03"]
    assert [one.chance for one in found] == sorted(one.chance for one in found)


def test_a_second_lemon_does_not_hide_behind_the_first() -> None:
    """The worst one's losses are most of all losses; it is taken out before the others are compared."""
    assert flagged([*PEERS, *A_FEW, *losses_of("n00", 60), *losses_of("n01", 6)]) == {"n00", "n01"}


def test_a_storm_over_the_fleet_flags_nobody() -> None:
    storm = [lost(day, node, named=node) for day in range(1, 80, 9) for node in NODES]
    assert flagged([*PEERS, *storm]) == set()


def test_a_high_rate_of_all_nodes_flags_nobody() -> None:
    """Each loses ten runs, at times of its own."""
    worn = [lost(1 + 8.0 * at + number / 7, node, named=node) for at in range(10) for number, node in enumerate(NODES)]
    assert flagged([*PEERS, *worn]) == set()


def test_a_node_that_works_more_may_lose_more() -> None:
    """Thirty times the hours of its peers and eight losses: no more an hour than theirs."""
    busy = [well(1 + 0.1 * at, "n00") for at in range(870)]
    rare = [lost(1 + 2.0 * at, node, named=node) for at, node in enumerate(NODES[5:20])]
    assert flagged([*PEERS, *rare, *losses_of("n00", 8)]) == {"n00"}
    assert flagged([*PEERS, *busy, *rare, *losses_of("n00", 8)]) == set()


def test_large_runs_that_nobody_explains_accuse_no_member() -> None:
    large = [lost(1 + 2.0 * at, *NODES[:32]) for at in range(40)]
    assert flagged([*PEERS, *A_FEW, *large], 89) == set()


def test_the_node_that_was_in_all_of_them_is_found() -> None:
    """Pairs that nobody explains, each with another partner and of another job."""
    pairs = [lost(2.0 + 3 * at, "n00", NODES[20 + at]) for at in range(25)]
    good = [well(day + 0.2, *NODES[at : at + 2]) for day in range(90) for at in range(0, 50, 2)]
    assert flagged([*PEERS, *A_FEW, *good, *pairs]) == {"n00"}


def test_a_program_that_fails_again_and_again_flags_nobody() -> None:
    runs = fleet([*PEERS, *A_FEW], NODES)
    crash = fleet([lost(2 + at / 2, "n00", failure_class="rank-exception") for at in range(150)])
    hangs = fleet(
        [lost(2 + at / 2, "n00", failure_class="collective-hang-unattributed") for at in range(150)], user="alice"
    )
    machines = [_joined(runs[0], crash[0], hangs[0]), *runs[1:]]
    found = suspicions(machines, START + 89 * DAY, LIMITS)
    assert [one.node for one in found if one.flagged] == []
    assert {one.action for one in found} == {"none"}


def _joined(*machines: Machine) -> Machine:
    events = sorted((event for machine in machines for event in machine.events), key=lambda event: event.time)
    return replace(machines[0], events=tuple(events))


def test_two_losses_in_the_first_days_are_no_rate() -> None:
    runs = [*(run for run in PEERS if run[0] < 3), lost(0.4, "n00", named="n00"), lost(1.4, "n00", named="n00")]
    assert flagged(runs, 2.0) == set()


def test_what_the_first_stage_found_stays_found_in_the_second() -> None:
    early = [*PEERS, *A_FEW, *[lost(1.0 + 3 * at, "n00", named="n00") for at in range(6)]]
    assert flagged(early, 27.0) == {"n00"}
    assert flagged(early, 80.0) == {"n00"}


def test_nothing_observed_is_no_answer() -> None:
    assert suspicions([], START, LIMITS) == ()
    assert suspicions([Machine("a", "a")], START, LIMITS) == ()
    assert suspicions([Machine("a", "a", since=START)], START + DAY, LIMITS) == ()
    assert suspicions([Machine("a", "a", since=START + DAY)], START, LIMITS) == ()


def test_a_machine_is_told_by_its_identity_and_shown_by_its_name() -> None:
    """What the machine before lost under this name is not this one's."""
    old = replace(fleet([*losses_of("n00", 12)])[0], identity="i-1", node="n00")
    new = replace(fleet([well(40.0, "n00")])[0], identity="i-2", node="n00", since=START + 39 * DAY)
    rest = fleet([run for run in [*PEERS, *A_FEW] if "n00" not in run[1]])
    found = {one.identity: one for one in suspicions([old, new, *rest], START + 89 * DAY, LIMITS)}
    assert (found["i-1"].flagged, found["i-2"].flagged) == (True, False)
    assert found["i-2"].node == "n00"


@pytest.mark.parametrize(
    ("day", "begin", "start"), [(0, 0, 0), (10, 0, 0), (89.9, 0, 0), (90, 0, 90), (200, 90, 180), (270, 180, 270)]
)
def test_periods_are_counted_from_the_first_machine_on(day: float, begin: float, start: float) -> None:
    wanted = Period(begin * DAY, start * DAY, ((start + 28) * DAY, (start + 90) * DAY))
    assert period_of(0.0, day * DAY, LIMITS) == wanted


def test_a_lemon_stays_known_where_a_period_begins() -> None:
    """Day 90: the evidence of the period before still counts, and the first stage runs for 28 days more."""
    runs = [*PEERS, *A_FEW, *losses_of("n00", 12)]
    assert flagged(runs, 89.0) == flagged(runs, 91.0) == {"n00"}
    assert flagged([*runs, *(well(180.5, node) for node in NODES)], 181.0) == set()


runs_of_nodes = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 85), st.booleans()).map(
        lambda told: lost(
            told[1],
            NODES[told[0]],
            *([] if told[2] else [NODES[(told[0] + told[1]) % 12]]),
            named=NODES[told[0]] if told[2] else None,
        )
    ),
    max_size=25,
    unique_by=lambda run: run[0],
)
FEW_PEERS = [well(day + 0.5, node) for day in range(0, 90, 10) for node in NODES[:12]]


@settings(max_examples=40, deadline=None)
@given(runs_of_nodes, st.integers(0, 11), st.integers(1, 80))
def test_one_loss_more_never_makes_a_node_less_suspicious(runs: list[Run], node: int, day: int) -> None:
    """Where it was a good run otherwise: the hours are the same. ``chance`` is compared before others are taken out."""
    name = NODES[node]
    strict = replace(LIMITS, rows={**LIMITS.rows, "blame.fdr": replace(LIMITS.rows["blame.fdr"], value=1e-300)})

    def chance(last: Run) -> float:
        machines = fleet([*FEW_PEERS, *runs, last], NODES[:12])
        return next(one.chance for one in suspicions(machines, START + 89 * DAY, strict) if one.node == name)

    assert chance(lost(day + 0.35, name, named=name)) <= chance(well(day + 0.35, name)) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(runs_of_nodes, st.randoms(use_true_random=False))
def test_names_and_order_of_nodes_make_no_difference(runs: list[Run], dice: random.Random) -> None:
    names = dice.sample(NODES[:12], 12)
    other = dict(zip(NODES[:12], names, strict=True))
    renamed = [
        (day, tuple(other[node] for node in nodes), told, named and other[named]) for day, nodes, told, named in runs
    ]
    before = suspicions(fleet([*FEW_PEERS, *runs], NODES[:12]), START + 89 * DAY, LIMITS)
    machines = fleet([*FEW_PEERS, *renamed], NODES[:12])
    after = suspicions(dice.sample(machines, 12), START + 89 * DAY, LIMITS)
    assert {other[one.node]: one.chance for one in before} == pytest.approx({one.node: one.chance for one in after})
    assert {other[one.node] for one in before if one.flagged} == {one.node for one in after if one.flagged}


@pytest.mark.parametrize(
    ("nodes", "flags", "wanted"),
    [(4, 0, (0, 0)), (4, 1, (1, 0)), (4, 3, (2, 1)), (40, 3, (2, 1)), (100, 5, (5, 0)), (100, 9, (5, 4))],
)
def test_an_exclude_list_is_short(nodes: int, flags: int, wanted: tuple[int, int]) -> None:
    found = [Suspicion(str(n), str(n), 1.0, 5.0, 0.1, n / 1000, 0.01, n < flags) for n in range(nodes)]
    chosen, more = excluded(found, LIMITS)
    assert (len(chosen), len(more)) == wanted
    assert [one.node for one in (*chosen, *more)] == [str(n) for n in range(flags)]


def test_a_small_simulation_with_known_truth() -> None:
    """Daily looks for 60 days. 3 wrong flags are twice what is allowed, which 24 fleets can't tell from chance.

    The whole one is ``python -m tests.bench.lemons``.
    """
    total = Score()
    for seed in range(24):
        total.add(play(Fleet(str(seed), 40, seed % 2, 30.0), 60, LIMITS))
    assert total.lemons == 12
    assert total.found[60] >= 10
    assert total.found[60] >= 0.9 * total.exact[60]
    assert total.wrong[60] <= 3
