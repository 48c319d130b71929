"""Two runs: what a remedy changed. What was not seen again is never called gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.compare import compared, differences
from nccl_slurm.doctor.result import Looked, Result
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
        ([FAIL], [Finding("node.ecc", "NOT-APPLICABLE", "no GPU", nodes=("n1",))], ["unseen"]),
        ([FAIL], [PASS, UNKNOWN], ["unseen"]),  # of some GPUs nothing is known
        ([FAIL, PASS], [FAIL], ["still"]),  # of one check on one node the worst counts
    ],
)
def test_kinds(before: Sequence[Finding], after: Sequence[Finding], kinds: list[str]) -> None:
    found = compared(told(*before), told(*after))
    assert [one.kind for one in found] == kinds
    assert ("no change" in changes(found, "then")) == (not kinds)


XID = Finding("node.xid", "FAIL", "Xid 79", "P0", nodes=("n1",), since=1000.0)
UNTIMED = replace(XID, since=None)
NO_XID = Finding("node.xid", "PASS", "none", nodes=("n1",))
ECC = replace(FAIL, since=1000.0)


@pytest.mark.parametrize(
    ("before", "then", "after", "now", "kind"),
    [
        (XID, None, NO_XID, None, "unseen"),  # this boot's log would tell it: it was before
        (UNTIMED, None, NO_XID, None, "gone"),  # what the driver asks for now
        (XID, None, NO_XID, 900.0, "gone"),
        (XID, None, NO_XID, 1100.0, "unseen"),  # it is before the window that was looked at
        (UNTIMED, None, NO_XID, 900.0, "unseen"),
        (UNTIMED, 900.0, NO_XID, 900.0, "gone"),
        (UNTIMED, 900.0, NO_XID, 950.0, "unseen"),
        (ECC, None, PASS, 1100.0, "gone"),  # a state, and no event
        (replace(XID, check="aws.events"), None, replace(NO_XID, check="aws.events"), None, "unseen"),  # a day is asked
        (replace(XID, check="aws.deep-check"), None, replace(NO_XID, check="aws.deep-check"), None, "unseen"),
        (replace(XID, check="aws.events", since=4e5), None, replace(NO_XID, check="aws.events"), None, "gone"),
    ],
)
def test_events_are_gone_in_the_same_window_alone(
    before: Finding, then: float | None, after: Finding, now: float | None, kind: str
) -> None:
    def run(at: float, since: float | None, finding: Finding) -> dict[str, Any]:
        return Result(at, 1.0, [finding], {finding.check: "x"}, since=since).to_json()

    (found,) = compared(run(2000.0, then, before), run(450000.0, now, after))
    assert found.kind == kind


@pytest.mark.parametrize(
    ("check", "then", "now", "kind"),
    [
        ("node.memlock", ["n1"], [], "unseen"),  # the job has ended: slurmd's limits are others
        ("node.memlock", ["n1"], ["n1"], "gone"),
        ("node.memlock", [], [], "gone"),
        ("node.ecc", ["n1"], [], "gone"),
    ],
)
def test_ranks_that_ended_are_not_cured(check: str, then: list[str], now: list[str], kind: str) -> None:
    def run(finding: Finding, ranks: list[str]) -> dict[str, Any]:
        looked = Looked(["n1"], ways={"local": ["n1"]}, with_ranks=ranks)
        return Result(0.0, 1.0, [replace(finding, check=check)], {check: "x"}, looked=looked).to_json()

    (found,) = compared(run(FAIL, then), run(PASS, now))
    assert found.kind == kind


def test_what_is_said_of_another_thing_is_not_better() -> None:
    looked = [Looked(["n1"], with_ranks=ranks) for ranks in (["n1"], [])]
    runs = [(replace(FAIL, check="node.ofi-plugin"), looked[0]), (replace(WARN, check="node.ofi-plugin"), looked[1])]
    before, after = (Result(0.0, 1.0, [one], {one.check: "x"}, looked=where).to_json() for one, where in runs)
    assert [one.kind for one in compared(before, after)] == ["unseen"]


def test_an_earlier_run_without_window_and_ranks_is_read() -> None:
    before = told(XID, FAIL)
    del before["since"], before["nodes"]["with_ranks"]
    kinds = {one.check: one.kind for one in compared(before, told(NO_XID, PASS))}
    assert kinds == {"node.xid": "unseen", FAIL.check: "gone"}


def test_nodes_are_compared_one_by_one_and_told_together() -> None:
    before = Finding("node.ecc", "FAIL", "x", "P0", nodes=("n1", "n2", "n3"))
    after = Finding("node.ecc", "PASS", "x", nodes=("n1", "n2"))
    found = compared(told(before), told(after))
    assert {(one.kind, tuple(one.nodes)) for one in found} == {("gone", ("n1", "n2")), ("unseen", ("n3",))}
    assert "gone     node.ecc n[1-2]: FAIL P0 -> PASS" in changes(found, "then")


STATE = Finding("scheduler.node-state", "FAIL", "DOWN", "P1", nodes=("n1",))
MEETING = Finding("job.environment", "FAIL", "elsewhere", "P0", nodes=("n1",))
HERE = Looked(["n1", "n2"], ways={"ssh": ["n1", "n2"]}, with_ranks=["n1", "n2"])


@pytest.mark.parametrize(
    ("before", "looked", "job", "more", "kind"),
    [
        (STATE, HERE, None, (), "gone"),
        (STATE, Looked(), None, (), "gone"),  # all nodes of Slurm
        (STATE, Looked(["n2"], ways={"ssh": ["n2"]}), None, (), "unseen"),
        (STATE, HERE, None, (replace(STATE, nodes=("n2",)),), "unseen"),
        (MEETING, HERE, "7", (), "gone"),
        (MEETING, HERE, "8", (), "unseen"),
        (MEETING, replace(HERE, with_ranks=["n2"]), "7", (), "unseen"),
        (MEETING, replace(HERE, of=9), "7", (), "unseen"),
        (MEETING, HERE, None, (), "unseen"),
    ],
)
def test_what_is_said_well_of_all_is_so_of_each(
    before: Finding, looked: Looked, job: str | None, more: tuple[Finding, ...], kind: str
) -> None:
    well = () if more else (replace(before, status="PASS", priority=None, nodes=()),)
    one = Result(0.0, 1.0, [before], {before.check: "x"}, job="7", looked=HERE).to_json()
    two = Result(9.0, 1.0, [*well, *more], {before.check: "x"}, job=job, looked=looked).to_json()
    (found,) = [change for change in compared(one, two) if change.before is not None]
    assert (found.kind, found.nodes) == (kind, ["n1"])


OUTPUT = Finding("job.output", "FAIL", "it printed an error", "P0")
LIMIT = Finding("node.memlock", "FAIL", "64 kB", "P0", nodes=("n1",))


@pytest.mark.parametrize(
    ("before", "after", "kinds", "said"),
    [
        ({"cluster": "a"}, {"cluster": "b"}, {"new": 1, "unseen": 3}, ["that run was of cluster a"]),
        ({"cluster": "a"}, {"cluster": "a"}, {"gone": 3, "new": 1}, []),
        ({"cluster": None}, {"cluster": "a"}, {"gone": 3, "new": 1}, []),
        ({"job": "7"}, {"job": "42"}, {"gone": 1, "unseen": 2, "new": 1}, ["that run was of job 7"]),
        ({"job": "7"}, {"job": None}, {"gone": 3, "new": 1}, []),
        (
            {"cluster": "a", "job": "7"},
            {"cluster": "b", "job": "42"},
            {"new": 1, "unseen": 3},
            ["that run was of cluster a", "that run was of job 7"],
        ),
    ],
)
def test_runs_of_other_clusters_and_jobs(
    before: dict[str, Any], after: dict[str, Any], kinds: dict[str, int], said: Sequence[str]
) -> None:
    passed = [replace(one, status="PASS", priority=None) for one in (FAIL, OUTPUT, LIMIT)]
    new = Finding("node.disk", "FAIL", "full", "P0", nodes=("n1",))
    one, two = {**told(FAIL, OUTPUT, LIMIT), **before}, {**told(*passed, new), **after}
    found = compared(one, two)
    assert Counter(change.kind for change in found) == kinds
    notes = differences(one, two)
    assert [note.partition(":")[0] for note in notes] == said
    assert all(note in changes(found, "then", notes) for note in notes)
