from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.daemon.conclude import _with_name
from nccl_slurm.daemon.disposition import ENDED, FINAL_ROWS, disposition, in_scope
from nccl_slurm.model import DOCTOR_JOB, READER_STEP, Job, Step

DOC = Path(__file__).parents[2] / "docs" / "jobs.md"
OK, BAD = Step("42.0", "python", "COMPLETED", 0, 0), Step("42.0", "python", "FAILED", 1, 0)
CANCELLED = Step("42.0", "python", "CANCELLED", 0, 15)


def job(
    state: str, *, ran: bool = True, steps: tuple[Step, ...] = (OK,), derived: str = "0:0", exit_code: str = "0:0"
) -> Job:
    return Job(
        "42", 42, "c", state=state, nodes=("n1",) if ran else (), steps=steps, derived_exit=derived, exit=exit_code
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (job("COMPLETED"), "record"),
        (job("COMPLETED", steps=(OK, BAD)), "diagnose"),
        (job("COMPLETED", derived="5:0"), "diagnose"),
        (job("COMPLETED", steps=(OK, Step("42.extern", "extern", "FAILED", 1, 0))), "record"),
        (job("COMPLETED", steps=(OK, Step("42.1", READER_STEP, "FAILED", 1, 0))), "record"),
        (job("FAILED", steps=()), "diagnose"),
        (job("NODE_FAIL"), "diagnose"),
        (job("OUT_OF_MEMORY"), "diagnose"),
        (job("BOOT_FAIL", ran=False), "diagnose"),
        (job("TIMEOUT", steps=(CANCELLED,)), "diagnose"),
        (job("CANCELLED", steps=(CANCELLED,)), "diagnose"),
        (job("CANCELLED", ran=False, steps=()), "ignore"),
        (job("PREEMPTED", steps=(CANCELLED,)), "record"),
        (job("REQUEUED", steps=(CANCELLED,)), "record"),
        (job("REQUEUED", steps=(BAD,)), "diagnose"),
        (job("REQUEUED", steps=(), exit_code="0:54"), "diagnose"),
        (job("REVOKED"), "ignore"),
        (replace(job("COMPLETED"), name=DOCTOR_JOB), "ignore"),
        (replace(job("COMPLETED", steps=(BAD,)), name=DOCTOR_JOB), "diagnose"),
        (replace(job("NODE_FAIL"), name=DOCTOR_JOB), "diagnose"),
        (job("RUNNING"), "open"),
        (job("COMPLETING"), "open"),
        (job("PENDING", ran=False), "open"),
        (job("A_STATE_OF_TOMORROW"), "open"),
    ],
)
def test_table(run: Job, expected: str) -> None:
    assert disposition(run)[0] == expected


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("steps", [(OK,), (BAD,)])
def test_every_final_state_is_decided(state: str, ran: bool, steps: tuple[Step, ...]) -> None:
    assert disposition(job(state, ran=ran, steps=steps))[0] != "open"


def test_docs_show_the_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in DOC.read_text().splitlines()
        if line.startswith("| ")
    ]
    word = {None: "either", True: "yes", False: "no"}
    for states, ran, failed, what, why in FINAL_ROWS:
        assert [", ".join(sorted(states)), word[ran], word[failed], what, why] in [
            [", ".join(sorted(r[0].split(", "))), *r[1:]] for r in rows
        ]


@pytest.mark.parametrize(
    ("scope", "gpus", "evidence", "expected"),
    [
        ("gpu-or-evidence", 8, False, True),
        ("gpu-or-evidence", None, True, True),
        ("gpu-or-evidence", 0, False, False),
        ("gpu-or-evidence", None, False, False),
        ("all", None, False, True),
        ("none", 8, True, False),
    ],
)
def test_scope(scope: str, gpus: int | None, evidence: bool, expected: bool) -> None:
    assert in_scope(scope, gpus, evidence) is expected


def test_who_cancelled_is_told_by_name() -> None:
    mine = replace(job("CANCELLED"), cancelled_by="7001", user="alice", uid=7001)
    assert _with_name(mine).cancelled_by == "alice"
    assert _with_name(replace(mine, cancelled_by="0")).cancelled_by == "root"
    assert _with_name(replace(mine, cancelled_by="3999999999")).cancelled_by == "uid 3999999999"
    assert _with_name(replace(mine, cancelled_by=None)).cancelled_by is None
