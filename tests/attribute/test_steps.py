"""Jobs with several steps: which one is judged, and what is believed to be of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.attribute.steps import judged, note, of_step
from nccl_slurm.model import Evidence, Fact, Rank, Step
from tests.attribute.scenarios import HANG, START, evidence, exception, fact, job, nodes, peer_closed, watchdog, xid

LATER = HANG + 1000


def step(number: int, state: str, begin: float = START, end: float = HANG, on: tuple[str, ...] = ("n1", "n2")) -> Step:
    code = {"COMPLETED": 0, "CANCELLED": 0}.get(state, 1)
    return Step(f"42.{number}", "train", state, code, 15 if state == "CANCELLED" else 0, on, begin, end)


def steps(*states: str) -> tuple[Step, ...]:
    batch = Step("42.batch", "batch", "FAILED", 1, 0, ("n1",))
    return (batch, *(step(n, state, START + n, HANG + n) for n, state in enumerate(states)))


@pytest.mark.parametrize(
    ("states", "state", "expected"),
    [
        (["FAILED"], "FAILED", None),  # there is no other
        (["COMPLETED", "COMPLETED"], "FAILED", None),  # the batch script itself failed
        (["COMPLETED", "FAILED"], "FAILED", 1),
        (["FAILED", "COMPLETED"], "COMPLETED", 0),
        (["FAILED", "COMPLETED", "FAILED"], "FAILED", 2),
        (["FAILED", "FAILED", "FAILED"], "FAILED", 0),
        (["COMPLETED", "FAILED", "OUT_OF_MEMORY"], "FAILED", 1),
        (["FAILED", "CANCELLED"], "TIMEOUT", 1),
        (["FAILED", "CANCELLED"], "CANCELLED", 1),
        (["FAILED", "CANCELLED"], "FAILED", 0),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_the_step_that_is_judged(states: list[str], state: str, expected: int | None) -> None:
    found = judged(job(state, steps=steps(*states)))
    assert (found and found.id) == (None if expected is None else f"42.{expected}")


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (["FAILED", "COMPLETED"], "Step 1 completed after it, so its failure did not end the job."),
        (["FAILED", "FAILED"], "The next one failed too."),
        (["FAILED", "FAILED", "FAILED"], "The next 2 failed too."),
    ],
    ids=["completed", "one", "two"],
)
def test_what_became_of_the_job_is_told(states: list[str], text: str) -> None:
    told = note(job(steps=steps(*states)))
    assert told is not None and told.text.startswith("Step 0 (FAILED) is judged") and told.text.endswith(text)
    assert note(job(steps=steps("FAILED"))) is None


def of(number: str, *facts: Fact) -> list[Fact]:
    return [replace(one, data={**one.data, "of_step": number}) for one in facts]


def rows(number: str, hosts: tuple[str, ...]) -> list[Rank]:
    return [Rank(rank, host=host, step=number, last=HANG) for rank, host in enumerate(hosts)]


def world(number: str, size: int) -> Fact:
    return fact("slurm.step-world", "", "context", data={"of_step": number, "world_size": size})


def run(facts: list[Fact], ranks: list[Rank], own: tuple[Step, ...], **more: Any) -> Evidence:
    return evidence(facts, ranks, job=job(steps=own, nodes=("n1", "n2", "n3")), nodes=[*nodes(), _n3()], **more)


def _n3() -> Any:
    return replace(nodes()[0], name="n3", identity="machine-n3")


RETRIED = (step(0, "FAILED"), step(1, "COMPLETED", HANG + 5, LATER, ("n1", "n3")))


def test_a_step_that_was_tried_again_on_other_nodes_is_judged_by_its_own_ranks() -> None:
    """Rank 3 of step 0 (on n2) raises; rank 3 of step 1 (on n3) says that it lost a peer, and recovers."""
    first = of("0", exception(3), peer_closed(0), peer_closed(1), peer_closed(2), world("0", 4))
    second = of("1", peer_closed(3), exception(0, "ValueError: once more"), world("1", 2))
    ranks = [*rows("0", ("n1", "n1", "n2", "n2")), *rows("1", ("n1", "n3"))]
    found = of_step(run([*first, *second], ranks, RETRIED))
    verdict = attribute(found)
    assert [(one.rank, one.host) for one in verdict.culprits] == [(3, "n2")]
    assert found.world_size == 4 and [rank.step for rank in found.ranks] == ["0"] * 4
    assert [gap.why.split(",")[0] for gap in found.gaps if gap.source == "step 0"] == ["3 lines of other steps"]


def test_without_being_told_apart_they_would_accuse_somebody_else() -> None:
    """What the former test is good for."""
    mixed = [
        exception(3),
        peer_closed(0),
        peer_closed(1),
        peer_closed(2),
        peer_closed(3),
        exception(0, "ValueError: x"),
    ]
    verdict = attribute(run(mixed, rows("0", ("n1", "n1", "n2", "n2")), (step(0, "FAILED"),), world=4))
    assert [one.rank for one in verdict.culprits] != [3]


def at(one: Fact, time: float | None, line: int, name: str = "slurm-42.out") -> Fact:
    return replace(one, time=time, uncertainty_s=None if time is None else 0.1, file=name, line=line)


@pytest.mark.parametrize(
    ("facts", "own", "kept"),
    [
        # by time
        ([at(peer_closed(0), HANG - 10, 5), at(peer_closed(1), HANG + 500, 9)], RETRIED, [0]),
        # without one: between what step 0 wrote and what step 1 wrote, and step 1 did not fail
        (
            [at(watchdog(2, 1), HANG - 9, 3), at(exception(0), None, 5), at(watchdog(3, 1), HANG + 500, 9)],
            RETRIED,
            [2, 0],
        ),
        # both failed: it may be of either
        (
            [at(watchdog(2, 1), HANG - 9, 3), at(exception(0), None, 5), at(watchdog(3, 1), HANG + 500, 9)],
            (step(0, "FAILED"), step(1, "FAILED", HANG + 5, LATER)),
            [2, None],
        ),
        # behind what step 1 wrote
        (
            [at(watchdog(3, 1), HANG + 500, 9), at(exception(0), None, 10)],
            (step(0, "FAILED"), step(1, "FAILED", HANG + 5, LATER)),
            [],
        ),
        # a step that only looked around before
        (
            [at(exception(0), None, 5), at(peer_closed(1), None, 6)],
            (step(0, "COMPLETED", START, START + 9), step(1, "FAILED", START + 10)),
            [0, 1],
        ),
        # on a node that the judged step did not have
        ([replace(at(peer_closed(1), None, 5), host="n3"), at(peer_closed(0), None, 6)], RETRIED, [0]),
    ],
    ids=["time", "between", "either", "behind", "looked-around", "other-node"],
)
def test_lines_of_the_jobs_own_output(facts: list[Fact], own: tuple[Step, ...], kept: list[int | None]) -> None:
    assert [one.rank for one in of_step(run(facts, [], own)).facts] == kept


def test_slurm_names_the_step_itself() -> None:
    text = "slurmstepd: error: *** STEP 42.{} ON n1 CANCELLED AT 2026-11-20T10:00:00 ***"
    ends = [fact("slurm.cancelled", text.format(n), data={"step": f"42.{n}"}) for n in (0, 1)]
    assert [one.text for one in of_step(run(ends, [], RETRIED)).facts] == [text.format(0)]


def test_a_kernels_word_counts_on_the_nodes_and_in_the_time_of_the_step() -> None:
    first = of("0", exception(3), peer_closed(0), peer_closed(1), peer_closed(2), world("0", 4))
    ranks = rows("0", ("n1", "n1", "n2", "n2"))
    elsewhere = attribute(of_step(run([*first, xid("n3", at=HANG - 30)], ranks, RETRIED)))
    afterwards = attribute(of_step(run([*first, xid("n1", at=LATER)], ranks, RETRIED)))
    there = attribute(of_step(run([*first, xid("n2", at=HANG - 30)], ranks, RETRIED)))
    assert [verdict.failure_class for verdict in (elsewhere, afterwards, there)] == ["rank-exception"] * 2 + [
        "gpu-hw-lost"
    ]


def test_steps_at_the_same_time_on_one_node_prove_nobody() -> None:
    beside = (step(0, "FAILED"), step(1, "FAILED", START + 5, HANG + 5, ("n2",)))
    first = of("0", exception(3), peer_closed(0), peer_closed(1), peer_closed(2), world("0", 4))
    found = of_step(run([*first, *of("1", peer_closed(0))], rows("0", ("n1", "n1", "n2", "n2")), beside))
    verdict = attribute(found)
    assert found.mixed == ("step 0", "step 1")
    assert (verdict.culprits, [one.rank for one in verdict.suspects]) == ((), [3])
    apart = (step(0, "FAILED"), step(1, "FAILED", START + 5, HANG + 5, ("n3",)))
    found = of_step(run([*first, *of("1", peer_closed(0))], rows("0", ("n1", "n1", "n2", "n2")), apart))
    assert [one.rank for one in attribute(found).culprits] == [3]


def test_without_a_failed_step_the_ranks_of_the_last_one_are_shown() -> None:
    ranks = [*rows("9", ("n1",)), *rows("10", ("n2",))]
    found = of_step(run([*of("9", peer_closed(0)), *of("10", peer_closed(0))], ranks, ()))
    assert [(rank.step, rank.host) for rank in found.ranks] == [("10", "n2")] and len(found.facts) == 1
    assert [gap.source for gap in found.gaps] == ["steps"]


def test_one_step_is_left_as_it_is() -> None:
    whole = run([exception(3)], rows("0", ("n1",)), (step(0, "FAILED"),))
    assert of_step(whole) is whole
