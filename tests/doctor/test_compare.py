"""Two runs: what a remedy changed. What was not seen again is never called gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.compare import compared
from nccl_slurm.doctor.result import Result
from nccl_slurm.doctor.text import changes

FAIL = Finding("node.ecc", "FAIL", "7 errors", "P0", nodes=("n1",))
WARN = Finding("node.ecc", "WARN", "1 error", "P1", nodes=("n1",))
PASS = Finding("node.ecc", "PASS", "none", nodes=("n1",))
UNKNOWN = Finding("node.ecc", "UNKNOWN", "not seen", nodes=("n1",))


def told(*findings: Finding) -> dict[str, Any]:
    return Result(0.0, 1.0, findings, {one.check: "x" for one in findings}).to_json()


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ([FAIL], [PASS], ["gone"]),
        ([FAIL], [], ["unseen"]),
        ([FAIL], [UNKNOWN], ["unseen"]),
        ([FAIL], [FAIL], ["still"]),
        ([FAIL], [WARN], ["better"]),
        ([WARN], [FAIL], ["worse"]),
        ([PASS], [FAIL], ["new"]),
        ([], [WARN], ["new"]),
        ([PASS], [PASS], []),
        ([PASS], [UNKNOWN], []),
        ([FAIL, PASS], [FAIL], ["still"]),  # of one check on one node the worst counts
    ],
)
def test_kinds(before: Sequence[Finding], after: Sequence[Finding], kinds: list[str]) -> None:
    found = compared(told(*before), told(*after))
    assert [one.kind for one in found] == kinds
    assert ("no change" in changes(found, "then")) == (not kinds)


def test_nodes_are_compared_one_by_one_and_told_together() -> None:
    before = Finding("node.ecc", "FAIL", "x", "P0", nodes=("n1", "n2", "n3"))
    after = Finding("node.ecc", "PASS", "x", nodes=("n1", "n2"))
    found = compared(told(before), told(after))
    assert {(one.kind, tuple(one.nodes)) for one in found} == {("gone", ("n1", "n2")), ("unseen", ("n3",))}
    assert "gone     node.ecc n[1-2]: FAIL P0 -> PASS" in changes(found, "then")
