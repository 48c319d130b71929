"""Which nodes are looked at: a job's, a list's, the idle ones; nothing is started where it would disturb."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor import choose
from nccl_slurm.doctor.choose import Choice
from nccl_slurm.errors import InputError, UnknownJob
from nccl_slurm.scheduler.client import Accounted, LiveJob, NodeState


@pytest.mark.parametrize(
    ("state", "flags", "yes"),
    [
        ("ALLOCATED", (), True),
        ("MIXED", ("DRAIN",), True),
        ("ALLOCATED", ("NOT_RESPONDING",), False),
        ("DOWN", (), False),
        ("UNKNOWN", (), False),
    ],
)
def test_no_step_is_started_where_slurmd_does_not_answer(state: str, flags: tuple[str, ...], yes: bool) -> None:
    assert choose.answers(NodeState("n1", state, frozenset(flags))) == yes


@pytest.mark.parametrize(
    ("state", "flags", "why"),
    [
        ("MIXED", ("NOT_RESPONDING",), "it is MIXED+NOT_RESPONDING: its slurmd does not answer Slurm"),
        ("IDLE", ("DRAIN", "NOT_RESPONDING"), "its slurmd does not answer Slurm"),
        ("IDLE", ("DRAIN",), "it is IDLE+DRAIN: Slurm starts no job there"),
        ("DOWN", ("DRAIN",), "it is DOWN+DRAIN: Slurm starts nothing there"),
        ("ALLOCATED", (), "it is ALLOCATED: it has jobs"),
        ("IDLE", ("PLANNED",), "it is IDLE+PLANNED: a job of ours is started on idle nodes alone"),
    ],
)
def test_why_nothing_is_started_there(state: str, flags: tuple[str, ...], why: str) -> None:
    assert why in choose.closed(NodeState("n1", state, frozenset(flags)))


RUNNING = LiveJob(42, "42", "x", "RUNNING", nodes=("n2", "n1"), uid=1000, start=5.0)
ENDED = Accounted(41, "41", "lab", "FAILED", nodes=("n3",), start=1.0, end=2.0)


@pytest.mark.parametrize(
    ("state", "flags", "idle"),
    [
        ("IDLE", (), True),
        ("IDLE", ("CLOUD",), True),
        ("IDLE", ("DRAIN",), False),
        ("IDLE", ("COMPLETING",), False),
        ("IDLE", ("PLANNED",), False),
        ("IDLE", ("CLOUD", "POWERED_DOWN"), False),
        ("IDLE", ("RESERVED",), False),
        ("MIXED", (), False),
        ("DOWN", (), False),
    ],
)
def test_idle(state: str, flags: tuple[str, ...], idle: bool) -> None:
    assert choose.is_idle(NodeState("n1", state, frozenset(flags))) == idle


def test_of_a_job() -> None:
    assert choose.of_job("42", [RUNNING], []) == Choice(["n1", "n2"], job=RUNNING)
    assert choose.of_job("41", [RUNNING], [ENDED]) == Choice(["n3"], ended=ENDED)
    assert (choose.of_job("41", [], [ENDED]).raw_id, choose.of_job("41", [], [ENDED]).start) == (41, 1.0)


def test_a_job_that_slurmctld_alone_still_knows() -> None:
    done = LiveJob(43, "43", "x", "COMPLETED", nodes=("n1",), start=3.0)
    found = choose.of_job("43", [done], [])
    assert (found.nodes, found.job, found.raw_id, found.start) == (["n1"], None, 43, 3.0)


def test_jobs_without_nodes() -> None:
    with pytest.raises(InputError, match="PENDING"):
        choose.of_job("44", [LiveJob(44, "44", "x", "PENDING")], [])
    with pytest.raises(UnknownJob):
        choose.of_job("45", [RUNNING], [ENDED])


@pytest.mark.parametrize(("state", "words"), [("FAILED", "has ended"), ("SUSPENDED", "is SUSPENDED: its ranks")])
def test_a_job_that_does_not_run_has_not_always_ended(state: str, words: str) -> None:
    found = choose.of_job("43", [LiveJob(43, "43", "x", state, nodes=("n1",), start=3.0)], [])
    assert found.job is None and words in found.why_unread


HET = [
    LiveJob(100, "100+0", "x", "RUNNING", het_job_id=100, het_offset=0, nodes=("n1", "n2")),
    LiveJob(101, "100+1", "x", "RUNNING", het_job_id=100, het_offset=1, nodes=("n3",)),
]
ARRAY = [
    LiveJob(201, "200_1", "x", "RUNNING", array_job_id=200, array_task_id=1, nodes=("n1",)),
    LiveJob(200, "200_2", "x", "RUNNING", array_job_id=200, array_task_id=2, nodes=("n2",)),
    LiveJob(203, "200_3", "x", "PENDING", array_job_id=200, array_task_id=3),
]


@pytest.mark.parametrize(
    ("job", "live", "nodes", "words"),
    [
        ("100", HET, ["n1", "n2"], "job 100 is looked at as 100+0 alone; beside it run 100+1"),
        ("100+0", HET, ["n1", "n2"], ""),
        ("100+1", HET, ["n3"], ""),
        ("101", HET, ["n3"], "beside it run 100+0"),
        ("200", ARRAY, ["n2"], "job 200 is looked at as 200_2 alone; beside it run 200_1:"),
        ("200_1", ARRAY, ["n1"], ""),
        ("42", [RUNNING, *HET, *ARRAY], ["n1", "n2"], ""),
        ("200", ARRAY[1:], ["n2"], ""),
    ],
)
def test_an_id_of_several_jobs_says_which_is_looked_at(
    job: str, live: list[LiveJob], nodes: list[str], words: str
) -> None:
    choice = choose.of_job(job, live, ())
    assert list(choice.nodes) == nodes
    told = choose.beside(job, choice.job or choice.ended, live)
    assert words in told and bool(told) == bool(words)


ENDED_ARRAY = [
    Accounted(51, "50_1", "x", "FAILED", start=1.0, end=9.0, nodes=("n1",)),
    Accounted(50, "50_2", "x", "COMPLETED", start=1.0, end=9.0, nodes=("n2",)),
]


@pytest.mark.parametrize(
    ("job", "nodes", "words"),
    [
        ("50_1", ["n1"], ""),
        ("50_2", ["n2"], ""),
        ("50", ["n2"], "job 50 is looked at as 50_2 alone; beside it ran 50_1: give --job with each id"),
    ],
)
def test_parts_of_a_job_that_has_ended(job: str, nodes: list[str], words: str) -> None:
    choice = choose.of_job(job, [], ENDED_ARRAY)
    assert list(choice.nodes) == nodes and choice.ended is not None
    assert choose.beside(job, choice.ended, [], ENDED_ARRAY) == words


KNOWN = {f"n{at}": NodeState(f"n{at}", "IDLE" if at < 3 else "ALLOCATED") for at in range(1, 5)}


def test_a_list_and_all_idle() -> None:
    assert list(choose.listed("n[1,4]", KNOWN).nodes) == ["n1", "n4"]
    assert choose.all_idle(KNOWN).nodes == ["n1", "n2"]
    for text in ("n[1-9]", "n1;x", "", "n["):
        with pytest.raises(InputError, match="--nodes"):
            choose.listed(text, KNOWN)
    with pytest.raises(InputError, match="no node is idle"):
        choose.all_idle({"n4": KNOWN["n4"]})


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_sample_is_spread_and_says_what_it_is_of(count: int, most: int) -> None:
    nodes = [f"n{at}" for at in range(count)]
    found = choose.sampled(Choice(nodes), most)
    assert len(found.nodes) == min(count, most) == len(set(found.nodes))
    assert found.of == (count if most < count else None)
    assert list(found.nodes) == sorted(found.nodes, key=nodes.index)
