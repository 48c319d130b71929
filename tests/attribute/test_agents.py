"""What tables of torchrun's agents prove: exit 0 by absence, the first of several attempts, local ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nccl_slurm.attribute.agents import Agents
from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Fact, Rank, Verdict
from tests.attribute.scenarios import (
    HANG,
    agent_saw,
    closing,
    evidence,
    exception,
    fact,
    forced,
    gloo_timeout,
    peer_closed,
)


def listed(rank: int, local: int, host: str = "n1", code: int = -15, file: str = "job.out") -> Fact:
    """A row of a table."""
    data = {"rank": rank, "local_rank": local, "exitcode": code, "pid": 100 + rank, "root": 0}
    text = f"rank      : {rank} (local_rank: {local})"
    return fact("elastic.failure", text, file=file, line=400 + rank, rank=rank, host=host, data=data)


def row(rank: int, local: int, code: int | None = None) -> Rank:
    return Rank(rank, host="n1", local_rank=local, exit=code)


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


@pytest.mark.parametrize(
    ("tables", "world", "finished"),
    [
        ([(0, 0, "n1"), (2, 2, "n1")], 3, {1}),
        ([(0, 0, "n1"), (1, 1, "n1"), (2, 0, "n2")], 4, {3}),
        ([(0, 0, "n1"), (1, 1, "n1")], 2, set()),
        ([(0, 0, "n1"), (1, 1, "n1")], 4, set()),  # the table of the other node is not there
        ([(0, 0, "n1"), (1, 1, "n1")], 3, set()),  # rank 2 may be of another node
        ([(0, 0, "n1"), (2, 2, "n1")], None, set()),
        ([(0, 0, "n1"), (5, 2, "n1")], 6, set()),  # contradicts itself
        ([(1, 0, "n1"), (2, 1, "n1")], 3, set()),  # nodes of unlike size
    ],
)
def test_a_table_lacks_those_that_had_finished(
    tables: list[tuple[int, int, str]], world: int | None, finished: set[int]
) -> None:
    facts = [listed(*one) for one in tables]
    agents = Agents(facts, {}, world)
    assert agents.finished == finished
    assert {agents.host(rank) for rank in finished} == {tables[-1][2] for _ in finished}


@pytest.mark.parametrize(("pid", "finished"), [(102, {1}), (101, set())])
def test_a_worker_that_outlived_sigkill_had_not_finished(pid: int, finished: set[int]) -> None:
    assert Agents([forced(pid), listed(0, 0), listed(2, 2, code=-9)], {}, 3).finished == finished


def test_the_table_of_a_later_attempt_tells_nothing_of_who_had_finished() -> None:
    facts = [agent_saw(1, 0), replace(agent_saw(1, 2), data={"exitcode": 1, "local_rank": 2, "pid": 8}), listed(0, 0)]
    facts.append(listed(2, 2))
    assert Agents(facts, {}, 3).finished == frozenset()


def attempts(host: str = "n1") -> list[Fact]:
    """SIGKILL on local rank 1; after the restart local rank 0 fails to connect."""
    second = replace(agent_saw(1, 0), line=350, data={"exitcode": 1, "local_rank": 0, "pid": 9})
    return [agent_saw(-9, 1), second, listed(0, 0, host, 1), listed(1, 1, host), listed(2, 2, host)]


def test_the_first_attempt_counts() -> None:
    assert Agents(attempts(), {}, 3).first_exits == {1: -9}
    verdict = attribute(evidence([peer_closed(0), peer_closed(2), *attempts()], world=3, job=None))
    assert (verdict.failure_class, named(verdict)) == ("process-signal", [1])


def ended(line: int, pid: int, agent: str = "1033", file: str = "job.out") -> Fact:
    """An agent's last word on an attempt."""
    said = f"failed (exitcode: 1) local_rank: 0 (pid: {pid})"
    text = f"E1130 06:39:30.404000 {agent} torch/distributed/elastic/x.py:1] {said}"
    data = {"exitcode": 1, "local_rank": 0, "pid": pid}
    return fact("elastic.failed", text, "cause", file=file, line=line, data=data)


@pytest.mark.parametrize(
    ("ends", "attempts"),
    [
        ([ended(50, 1), ended(98, 2)], [0, 0, 1, 1]),
        ([ended(50, 1)], [None] * 4),
        ([ended(50, 1), ended(60, 2, agent="2044")], [None] * 4),  # two agents print here
        ([ended(50, 1, agent=""), ended(98, 2, agent="")], [None] * 4),
        ([ended(50, 1), ended(98, 2, file="other.out")], [None] * 4),
        ([ended(50, 1), ended(98, 2), listed(0, 0, "n1"), listed(2, 0, "n2")], [None] * 4),
    ],
    ids=["two", "one", "two-agents", "pid-untold", "two-files", "two-hosts"],
)
def test_lines_of_one_agent_are_of_the_attempt_that_ends_next(ends: list[Fact], attempts: list[int | None]) -> None:
    words = [replace(peer_closed(0), file="job.out", line=line) for line in (10, 49, 97, 120)]
    agents = Agents([*words, *ends], {}, 4)
    assert [agents.dated(word).data.get("attempt") for word in words] == attempts


def test_of_two_nodes_too_the_first_attempt_counts() -> None:
    """Rank 1 raises and rank 0 loses it, after the restart the other way round; ranks 2 and 3 lose somebody twice."""
    first = [later(exception(1), 30), later(peer_closed(0), 48), ended(50, 1)]
    second = [later(exception(0), 78), later(peer_closed(1), 96), ended(98, 2)]
    others = [
        replace(peer_closed(rank), file="n2.out", line=line) for rank, line in ((2, 30), (3, 48), (3, 77), (2, 95))
    ]
    verdict = attribute(evidence([*first, *second, *others], world=4, job=None))
    assert (verdict.failure_class, named(verdict)) == ("rank-exception", [1])


def later(word: Fact, line: int) -> Fact:
    return replace(word, file="job.out", line=line)


def test_what_is_told_in_a_later_attempt_does_not_count() -> None:
    """Rank 1 hangs in the first attempt, rank 0 in the second: both times the others wait."""
    first = [later(gloo_timeout(rank), 100 + rank) for rank in (0, 2)] + [
        later(closing(50), 200),
        later(closing(51), 201),
    ]
    ended = replace(agent_saw(1, 0), file="job.out", line=290)
    second = [later(gloo_timeout(rank), 300 + rank) for rank in (1, 2)]
    again = replace(agent_saw(1, 2), file="job.out", line=350, data={"exitcode": 1, "local_rank": 2, "pid": 9})
    rows = [listed(0, 0), listed(1, 1), listed(2, 2, code=1)]
    verdict = attribute(evidence([*first, ended, *second, again, *rows], world=3, job=None))
    assert (verdict.failure_class, named(verdict)) == ("collective-missing-rank", [1])


@pytest.mark.parametrize(
    ("word", "is_later"),
    [
        (fact("gloo.timeout", "x", file="logs/attempt_1/0/stderr.log", data={"attempt": 1}), True),
        (fact("gloo.timeout", "x", file="logs/attempt_0/0/stderr.log", line=900, data={"attempt": 0}), False),
        (fact("gloo.timeout", "x", file="slurm-42.out", line=291), True),
        (fact("gloo.timeout", "x", file="slurm-42.out", line=289), False),
        (fact("slurm.cancelled", "x", file="slurm-42.out", line=900), False),
        (fact("kernel.xid", "x", file="slurm-42.out", line=900), False),
        (fact("flight-recorder.status", "x", data={"until": HANG + 90.0}), True),
        (fact("flight-recorder.status", "x", data={"until": HANG - 9.0}), False),
        (fact("flight-recorder.status", "x"), True),
    ],
    ids=["folder", "first-folder", "line", "first-line", "slurm", "kernel", "dump", "first-dump", "dump-undated"],
)
def test_attempts_are_told_by_folder_line_and_time(word: Fact, is_later: bool) -> None:
    ends = [replace(one, time=HANG, uncertainty_s=0.001) if one.kind == "elastic.failed" else one for one in attempts()]
    assert Agents(ends, {}, 3).is_later(word) == is_later
    assert not Agents(ends, {}, None).is_later(word)


@pytest.mark.parametrize("world", [None, 6])
def test_attempts_of_several_agents_are_not_put_together(world: int | None) -> None:
    assert Agents(attempts(), {}, world).first_exits is None


@pytest.mark.parametrize(
    ("role", "world", "file", "rank"),
    [
        ("cause", 2, "other.log", 1),
        ("cause", None, "job.out", None),
        ("consequence", None, "job.out", 1),
        ("consequence", None, "other.log", None),
        ("consequence", 4, "job.out", None),
    ],
)
def test_a_local_rank_is_a_rank_where_there_is_one_agent(
    role: str, world: int | None, file: str, rank: int | None
) -> None:
    word = fact("python.exception", "KeyError: 'x'", role, file=file, data={"local_rank": 1})
    assert Agents([listed(0, 0), listed(1, 1)], {}, world).placed(word).rank == rank


@pytest.mark.parametrize(
    ("more", "world", "culprits"),
    [
        ([], 3, [1]),
        ([], None, []),
        ([gloo_timeout(0)], 3, [1]),  # then it is silence among those that waited
        ([exception(2)], 3, []),
        ([exception(1)], 3, []),
    ],
    ids=["left", "world-unknown", "timeout", "other-cause", "own-cause"],
)
def test_who_finished_while_others_went_on_is_the_one_they_lost(
    more: list[Fact], world: int | None, culprits: list[int]
) -> None:
    facts = [peer_closed(0), peer_closed(2), *more, listed(0, 0, code=1), listed(2, 2)]
    verdict = attribute(evidence(facts, [row(0, 0, 1), row(2, 2, -15)], world=world, job=None))
    found = named(verdict) if verdict.failure_class == "collective-missing-rank" else []
    assert found == culprits


def test_one_witness_is_not_enough_for_a_rank_that_left() -> None:
    facts = [peer_closed(0), listed(0, 0, code=1), listed(2, 2), closing(102)]
    assert not named(attribute(evidence(facts, [row(0, 0, 1), row(2, 2, -15)], world=3, job=None)))
