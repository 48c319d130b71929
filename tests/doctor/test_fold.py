"""Many findings of many nodes → few lines: causes first, consequences under them, nothing lost on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.check import PRIORITIES, STATUSES, Finding, Priority, Proof
from nccl_slurm.doctor.fold import at_least, folded, worst

ORDER = ("node.driver", "node.gpu-count", "node.nvlink", "scheduler.controller")
EXPLAINS = {"node.driver": ("node.gpu-count", "node.nvlink"), "scheduler.controller": ("node.driver",)}


def fail(check: str, *nodes: str, text: str = "bad", priority: Priority = "P1", proof: str = "") -> Finding:
    proofs = [Proof("cat /x", proof)] if proof else []
    return Finding(check, "FAIL", text, priority, nodes=nodes, proofs=proofs)


def shown(findings: Sequence[Finding]) -> list[tuple[str, str, tuple[str, ...], str | None]]:
    return [(one.check, one.status, tuple(one.nodes), one.explained_by) for one in findings]


def test_the_same_of_many_nodes_is_one() -> None:
    (one,) = folded([fail("node.nvlink", f"n{at}", proof="Link 3: down") for at in (2, 1, 3)], EXPLAINS, ORDER)
    assert (one.nodes, one.proofs) == (("n1", "n2", "n3"), (Proof("n[1-3]: cat /x", "Link 3: down"),))


def test_other_words_or_another_status_stay_apart() -> None:
    told = [fail("node.nvlink", "n1"), fail("node.nvlink", "n2", text="worse"), Finding("node.nvlink", "PASS", "bad")]
    assert len(folded(told, EXPLAINS, ORDER)) == 3


def test_consequences_are_told_under_their_cause_on_its_nodes_alone() -> None:
    told = [
        fail("node.gpu-count", "n1"),
        fail("node.gpu-count", "n2"),
        Finding("node.nvlink", "UNKNOWN", "not seen", nodes=("n1",)),
        Finding("node.nvlink", "PASS", "fine", nodes=("n2",)),
        fail("node.driver", "n1", priority="P0"),
    ]
    found = shown(folded(told, EXPLAINS, ORDER))
    assert found[0] == ("node.driver", "FAIL", ("n1",), None)
    assert set(found[1:]) == {
        ("node.gpu-count", "FAIL", ("n1",), "node.driver"),
        ("node.gpu-count", "FAIL", ("n2",), None),
        ("node.nvlink", "UNKNOWN", ("n1",), "node.driver"),
        ("node.nvlink", "PASS", ("n2",), None),
    }


def test_a_finding_that_is_on_several_nodes_is_split() -> None:
    told = [fail("node.gpu-count", "n1", "n2"), fail("node.driver", "n2")]
    assert ("node.gpu-count", "FAIL", ("n1",), None) in shown(folded(told, EXPLAINS, ORDER))
    assert ("node.gpu-count", "FAIL", ("n2",), "node.driver") in shown(folded(told, EXPLAINS, ORDER))


def test_a_cause_of_the_whole_cluster_explains_all_nodes() -> None:
    told = [fail("node.driver", "n1"), fail("scheduler.controller", priority="P0")]
    assert shown(folded(told, EXPLAINS, ORDER))[1] == ("node.driver", "FAIL", ("n1",), "scheduler.controller")


def test_a_warning_explains_nothing() -> None:
    told = [fail("node.gpu-count", "n1"), Finding("node.driver", "WARN", "old", "P0", nodes=("n1",))]
    assert not [one for one in folded(told, EXPLAINS, ORDER) if one.explained_by]


@pytest.mark.parametrize(
    ("cause", "priority", "explained"),
    [("P0", "P0", True), ("P0", "P1", True), ("P1", "P1", True), ("P1", "P0", False), ("P2", "P1", False)],
)
def test_a_cause_is_no_lesser_than_what_it_explains(cause: Priority, priority: Priority, explained: bool) -> None:
    told = [fail("node.driver", "n1", priority=cause), fail("node.gpu-count", "n1", priority=priority)]
    other = fail("node.driver", "n2", priority="P0")  # that of another node lends it no weight
    found = {one.check: one.explained_by for one in folded([*told, other], EXPLAINS, ORDER)}
    assert found["node.gpu-count"] == ("node.driver" if explained else None)
    assert "node.gpu-count" in {one.check for one in at_least(folded(told, EXPLAINS, ORDER), priority)}


@pytest.mark.parametrize(
    ("one", "other", "explained"),
    [
        ("0000:53:00", "00000000:53:00.0", True),
        ("PCI:0000:53:00", "00000000:64:00.0", False),
        ("0001:53:00", "00000000:53:00.0", False),
        ("?", "00000000:53:00.0", True),
        ("0000:53:00", "5", True),  # it does not say which
    ],
)
def test_a_fault_of_one_gpu_explains_none_of_another(one: str, other: str, explained: bool) -> None:
    cause = Finding("node.driver", "FAIL", "Xid 79", "P0", ("n1",), values={"gpu": one})
    ecc = Finding("node.gpu-count", "FAIL", "gone", "P0", ("n1",), values={"gpu": other})
    found = {each.check: each.explained_by for each in folded([cause, ecc], EXPLAINS, ORDER)}
    assert found["node.gpu-count"] == ("node.driver" if explained else None)


def test_several_gpus_of_one_cause_are_told_by_its_proofs() -> None:
    lines = [Proof("kernel log", f"NVRM: Xid (PCI:0000:{bus}:00): 79") for bus in ("53", "64")]
    cause = Finding("node.driver", "FAIL", "Xid 79", "P0", ("n1",), proofs=lines, values={"gpu": "0000:53:00"})
    ecc = Finding("node.gpu-count", "FAIL", "gone", "P0", ("n1",), values={"gpu": "00000000:64:00.0"})
    assert folded([cause, ecc], EXPLAINS, ORDER)[1].explained_by == "node.driver"


def test_two_that_explain_each_other_do_not_both_vanish() -> None:
    mutual = {"node.driver": ("node.nvlink",), "node.nvlink": ("node.driver",)}
    told = [fail("node.driver", "n1"), fail("node.nvlink", "n1")]
    assert shown(folded(told, mutual, ORDER)) == [
        ("node.driver", "FAIL", ("n1",), None),
        ("node.nvlink", "FAIL", ("n1",), "node.driver"),
    ]


def test_order() -> None:
    told = [
        Finding("node.nvlink", "PASS", "fine"),
        Finding("node.nvlink", "UNKNOWN", "not seen"),
        Finding("node.gpu-count", "WARN", "x", "P1"),
        fail("node.gpu-count", "n1", priority="P2"),
        fail("node.nvlink", "n1", priority="P0"),
        fail("node.driver", "n9", priority="P1"),
    ]
    assert [(one.priority, one.status) for one in folded(told, {}, ORDER)] == [
        ("P0", "FAIL"),
        ("P1", "FAIL"),
        ("P1", "WARN"),
        ("P2", "FAIL"),
        (None, "UNKNOWN"),
        (None, "PASS"),
    ]


def test_secrets_are_not_told() -> None:
    (one,) = folded([fail("node.driver", "n1", text="token=ghp_" + "a" * 36, proof="password=hunter22")], {}, ORDER)
    assert "aaaa" not in one.text and "hunter22" not in one.proofs[0].line


def test_at_least_keeps_what_could_not_be_seen() -> None:
    told = [fail("node.driver", priority="P2"), fail("node.nvlink"), Finding("node.nvlink", "UNKNOWN", "x")]
    assert [one.status for one in at_least(told, "P1")] == ["FAIL", "UNKNOWN"]
    assert (worst(told), worst([])) == ("P1", None)


def test_the_cause_of_what_could_not_be_seen_is_kept() -> None:
    told = [fail("node.driver", "n1"), fail("node.driver", "n2"), Finding("node.nvlink", "UNKNOWN", "x", None, ("n1",))]
    kept = at_least(folded(told, EXPLAINS, ("node.driver",)), "P0")
    assert {(one.check, tuple(one.nodes)) for one in kept} == {("node.driver", ("n1", "n2")), ("node.nvlink", ("n1",))}


NODES = st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=3, unique=True).map(tuple)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    status = draw(st.sampled_from(STATUSES))
    priority = draw(st.sampled_from(PRIORITIES)) if status in ("FAIL", "WARN") else None
    return Finding(draw(st.sampled_from(ORDER)), status, draw(st.sampled_from(["a", "b"])), priority, draw(NODES))


@given(st.lists(findings(), max_size=12))
def test_nothing_is_lost_and_nothing_explains_itself(told: list[Finding]) -> None:
    """Every (check, status, node) that went in comes out, and no chain of causes is without an end."""
    out = folded(told, EXPLAINS, ORDER)

    def places(of: Sequence[Finding]) -> set[tuple[str, str, str]]:
        return {(one.check, one.status, node) for one in of for node in (one.nodes or [""])}

    assert places(told) == places(out)
    bad = [one for one in told if one.status in ("FAIL", "WARN", "UNKNOWN")]
    assert not bad or any(not one.explained_by for one in out if one.status in ("FAIL", "WARN", "UNKNOWN"))
