"""A job that still runs: order alone names a rank, silence makes suspects at most, and nobody is asked for more than a
look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.attribute.live import Quiet, capped, judge, look_only
from nccl_slurm.model import Evidence, Fact, Job, NodeView, Rank, Recommendation, Verdict, numbered

NODES = ("n1", "n2")
JOB = Job(id="5", raw_id=5, cluster="c", state="RUNNING", nodes=NODES)


def dumped(rank: int, enqueued: int, completed: int) -> Fact:
    counts = {"enqueued": enqueued, "started": enqueued, "completed": completed, "pg": "0"}
    node = NODES[rank // 2]
    name = f"{node}/nccl_trace_rank_{rank}"
    return Fact("flight-recorder.status", "x", "flight-recorder", "context", "job", None, name, rank=rank, data=counts)


def evidence(*facts: Fact, counts: tuple[tuple[int, int], ...] = (), world: int | None = 4) -> Evidence:
    """``counts``: enqueued and completed of ranks 0, 1 …"""
    dumps = [dumped(rank, *pair) for rank, pair in enumerate(counts)]
    ranks = [
        Rank(
            rank,
            NODES[rank // 2],
            last_line="step 3",
            progress={"0": {"enqueued": counts[rank][0], "completed": counts[rank][1]}} if counts else {},
        )
        for rank in range(4)
    ]
    views = [NodeView(name) for name in NODES]
    return Evidence(JOB, views, numbered([*facts, *dumps]), ranks, (), world)


BEHIND = ((16, 15), (16, 15), (15, 15), (16, 15))


def verdict(given: Evidence, **quiet: Any) -> Verdict:
    found = judge(given, Quiet(**quiet))[1]
    assert found.action in ("none", "investigate", "fix-code", "fix-config", "network", "unknown")
    return found


def people(found: Verdict) -> tuple[list[int | None], list[int | None]]:
    return [one.rank for one in found.culprits], [one.rank for one in found.suspects]


def test_counts_that_rose_and_then_stood_still_prove_who_is_behind() -> None:
    found = verdict(evidence(counts=BEHIND), still_s=95.0, rose=True)
    assert (found.failure_class, found.confidence, found.action) == ("collective-missing-rank", "proven", "investigate")
    assert people(found) == ([2], []) and "95 s" in found.summary


def test_where_nothing_was_read_nothing_is_said_to_be_well() -> None:
    found = verdict(Evidence(JOB, [NodeView(name) for name in NODES], (), (), (), None))
    assert (found.failure_class, found.action) == ("unknown", "unknown")
    assert found.summary == "No rank was seen: nothing that one left could be read, or none has left anything."


def test_our_own_observation_is_a_fact_of_it() -> None:
    whole, found = judge(evidence(counts=BEHIND), Quiet(still_s=95.0, rose=True))
    still = next(fact for fact in whole.facts if fact.kind == "live.still")
    assert still.id in found.inferences[0].facts and len({fact.id for fact in whole.facts}) == len(whole.facts)


def test_counts_that_were_never_seen_to_rise_may_be_old_dumps_of_different_moments() -> None:
    found = verdict(evidence(counts=BEHIND), still_s=95.0)
    assert people(found) == ([], [2]) and found.confidence == "likely"


def test_counts_that_move_name_nobody() -> None:
    assert people(verdict(evidence(counts=BEHIND))) == ([], [])
    assert people(verdict(evidence(counts=BEHIND), rose=True)) == ([], [])


def test_two_against_two_name_nobody() -> None:
    found = verdict(evidence(counts=((16, 15), (16, 15), (15, 15), (15, 15))), still_s=95.0, rose=True)
    assert people(found) == ([], []) and found.confidence == "possible"


def test_a_silent_rank_among_others_is_a_suspect() -> None:
    found = verdict(evidence(), ranks={2: 80.0}, moving=frozenset({0, 1, 3}), longest_s=5.0)
    assert (found.failure_class, found.confidence) == ("straggler", "possible")
    assert people(found) == ([], [2]) and "5 s" in found.summary


@pytest.mark.parametrize("moving", [frozenset(), frozenset({0}), frozenset({0, 1})])
def test_where_as_many_are_silent_as_go_on_nobody_is_named(moving: frozenset[int]) -> None:
    silent = {rank: 80.0 for rank in range(4) if rank not in moving}
    assert people(verdict(evidence(), ranks=silent, moving=moving, longest_s=5.0)) == ([], [])


def test_all_silent_names_nobody() -> None:
    found = verdict(evidence(), ranks=dict.fromkeys(range(4), 80.0), longest_s=5.0, all_s=80.0)
    assert (found.failure_class, found.confidence) == ("collective-hang-unattributed", "possible")
    assert people(found) == ([], []) and found.action == "investigate"


FAILED = Fact(
    "python.exception", "ValueError: x", "python", "cause", "job", "rank-exception", "o", 3, rank=3, host="n2"
)


def test_what_a_rank_printed_makes_a_suspect_of_it_at_most() -> None:
    """In a job that runs an exception may have been caught."""
    found = verdict(evidence(FAILED), ranks=dict.fromkeys(range(4), 80.0), longest_s=5.0, all_s=80.0)
    assert found.failure_class == "rank-exception" and people(found) == ([], [3])
    assert found.confidence == "possible" and "80 s" in found.summary


def test_only_ranks_that_were_all_seen_to_go_on_are_well() -> None:
    all_ = frozenset(range(4))
    assert verdict(evidence(), moving=all_, longest_s=1.0).failure_class == "benign"
    assert verdict(evidence(), moving=all_ - {2}, longest_s=1.0).failure_class == "unknown"
    assert verdict(evidence(world=None), moving=all_, longest_s=1.0).failure_class == "unknown"
    assert verdict(Evidence(JOB)).failure_class == "unknown"


def ras(group_rank: int, lead: int, pid: int) -> Fact:
    data = {"comm_hash": "fa93", "op": "AllReduce", "group_rank": group_rank, "count": 640, "lead": lead, "pid": pid}
    return Fact("nccl.ras-rank", "Rank 2 has launched …", "nccl", "context", "job", file="n1/ras", data=data)


def test_ras_makes_suspects_of_those_behind_by_their_process() -> None:
    given = evidence(ras(0, -1, 77), ras(1, 2, 78))
    given = replace(given, ranks=[replace(rank, pid=75 + rank.rank) for rank in given.ranks])
    found = verdict(given, ras_s={"f1": 60.0, "f2": 60.0})
    assert people(found) == ([], [2]) and found.confidence == "possible"
    assert people(verdict(given)) == ([], [])  # a difference of one look is none
    assert people(verdict(evidence(ras(0, -1, 77)), ras_s={"f1": 60.0})) == ([], [])  # whose process it is is not known


def test_nothing_goes_further_than_a_look() -> None:
    assert capped(Verdict("gpu-hw-lost", "proven", "x", "replace")).action == "investigate"
    asked = look_only(Recommendation("n1", "reboot", "xid.79", 2, "fell off", ("f1",), ("scontrol …",)))
    assert (asked.action, asked.commands, asked.target) == ("investigate", (), "n1")
    same = Recommendation("n1", "network", "x", 1, "y")
    assert look_only(same) is same
