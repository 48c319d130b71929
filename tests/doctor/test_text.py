"""What a person reads: causes above consequences, what is unseen in few lines, nothing that a terminal would act on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.doctor import registry
from nccl_slurm.doctor.check import AREAS, Finding, Priority, Proof
from nccl_slurm.doctor.guide import PLACEHOLDER
from nccl_slurm.doctor.result import Looked, Result
from nccl_slurm.doctor.text import explained, render

CAUSE = Finding(
    "node.fabric-manager",
    "FAIL",
    "does not run",
    "P0",
    nodes=("n1", "n2"),
    since=0.0,
    proofs=[Proof("systemctl show x", "ActiveState=failed\x1b[2J\u202e")],
)
UNDER = Finding("node.nvlink", "FAIL", "no link", "P0", nodes=("n1", "n2"), explained_by="node.fabric-manager")
OTHER = Finding("node.nvlink", "WARN", "few links", "P2", nodes=("n3",))
DARK = [Finding(f"node.{name}", "UNKNOWN", "nvidia-smi: not found", nodes=("n4",)) for name in ("ecc", "clocks")]
NAMES = ("n1", "n2", "n3", "n4")
LOOKED = Looked(["n1", "n2", "n3", "n4"], ways={"ssh": ["n1", "n2", "n3", "n4"]})


def told(*findings: Finding, severity: Priority | None = None, wide: bool = False, color: bool = False) -> str:
    result = Result(0.0, 1.0, findings, {one.check: "x" for one in findings}, looked=LOOKED)
    return render(result, severity=severity, wide=wide, color=color)


def test_a_finding_of_no_node_names_none_in_its_commands() -> None:
    def commands(check: str, *nodes: str) -> str:
        finding = Finding(check, "FAIL", "x", "P1", nodes=nodes, values={"job": "12"})
        return " ".join(Result(0.0, 1.0, [finding], {}, looked=Looked(["n1"])).commands(finding))

    assert "ssh" not in commands("scheduler.stuck-jobs") and "squeue --jobs=12 " in commands("scheduler.stuck-jobs")
    assert "n1" not in commands("scheduler.stuck-jobs").split()
    assert "n3" in commands("scheduler.stuck-jobs", "n3").split()
    assert "ssh n1 systemctl" in commands("scheduler.limits")  # of the whole cluster: any node shows it


def test_a_consequence_stands_under_its_cause_alone() -> None:
    text = told(CAUSE, UNDER, OTHER)
    assert "P0 FAIL node.fabric-manager n[1-2]: does not run\n     since 1970-01-01T00:00:00.000Z\n" in text
    assert "     explains node.nvlink on n[1-2]: no link\n" in text
    assert text.count("no link") == 1 and "P2 WARN node.nvlink n3: few links" in text
    assert "guide: nccl-slurm explain node.fabric-manager" in text


def test_each_of_two_causes_explains_its_own_nodes_and_the_list_is_told_once() -> None:
    checks = [f"node.c{number}" for number in range(7)]
    why = "the node gave no observation"
    dark = [Finding(one, "UNKNOWN", why, nodes=NAMES, explained_by="fleet.unreachable") for one in checks]
    causes = [
        Finding("fleet.unreachable", "UNKNOWN", f"was not looked at: {nodes[0]}", nodes=nodes)
        for nodes in (NAMES[:2], NAMES[2:])
    ]
    text = told(*causes, *dark)
    assert "explains 7 checks on n[1-2]: node.c0" in text and "explains the same 7 checks on n[3-4]\n" in text
    assert text.count("node.c0") == 1 and "on n[1-4]" not in text


def test_what_a_consequence_found_is_told_short_and_harmless() -> None:
    """It may be no consequence after all: a link of a GPU that nobody lost."""
    under = [replace(UNDER, text=text) for text in ("GPU 3: 12 of 18 links\x1b[2J" + "x" * 400, "GPU 4: none")]
    text = told(CAUSE, *under)
    (line,) = [one for one in text.splitlines() if "explains node.nvlink" in one]
    assert "GPU 3: 12 of 18 links\\x1b[2J" in line and line.endswith("... and 1 more") and len(line) < 230


def test_what_a_terminal_would_act_on_is_shown() -> None:
    text = told(CAUSE)
    assert "systemctl show x: ActiveState=failed\\x1b[2J\\u202e" in text and "\x1b" not in text


def test_one_reason_that_blinds_many_checks_is_told_once() -> None:
    text = told(*DARK)
    assert text.count("nvidia-smi: not found") == 1
    assert "-- UNKNOWN several checks n4: nvidia-smi: not found\n     node.ecc, node.clocks\n" in text
    assert "     guide, one by one: nccl-slurm explain node.ecc\n" in text
    assert text.endswith("2 checks: 2 UNKNOWN")


def test_each_check_is_counted_once_by_the_worst_that_it_found() -> None:
    other = Finding("node.disk", "NOT-APPLICABLE", "no disk", nodes=("n9",))
    text = told(CAUSE, UNDER, OTHER, other, Finding("node.nvlink", "PASS", "all links", nodes=("n9",)))
    # what follows from another one is counted too
    assert text.endswith("3 checks, each by the worst that it found: 2 FAIL, 1 not applicable")


def test_both_ends_count_the_same_checks() -> None:
    """Also that which nobody chose, and tells of nodes without an answer."""
    dark = Finding("fleet.unreachable", "FAIL", "gave no observation", "P1", nodes=("n1",))
    lines = render(Result(0.0, 1.0, [dark, OTHER], {OTHER.check: "x"}, looked=LOOKED)).splitlines()
    assert " 2 checks in " in lines[0] and lines[-1].startswith("2 checks: ")


def test_many_consequences_are_one_paragraph() -> None:
    cause = Finding("fleet.unreachable", "UNKNOWN", "was not looked at", nodes=("n1",))
    under = [
        Finding(f"node.check-{letter}", "UNKNOWN", "dark", nodes=("n1",), explained_by="fleet.unreachable")
        for letter in "abcdefgh"
    ]
    few, many = told(cause, *under[:5]), told(cause, *under)
    assert few.count("     explains node.check-") == 5
    assert "     explains 8 checks on n1: node.check-a, node.check-b" in many
    assert many.count("explains") == 1 and many.count("node.check-h") == 1


def test_an_explained_check_has_words_in_capitals_for_what_is_not_known() -> None:
    for check in registry.checks(*AREAS):
        assert not PLACEHOLDER.search(explained(check).rpartition("Suggested command")[2]), check.id


def test_a_check_that_passed_on_one_node_has_not_passed() -> None:
    good = Finding("node.nvlink", "PASS", "all links", nodes=("n9",))
    assert told(OTHER, good).endswith("1 check, by the worst that it found: 1 WARN")
    assert told(good).endswith("1 check: 1 passed")
    assert "PASS node.nvlink n9: all links" in told(good, wide=True)
    assert "all links" not in told(good)


@pytest.mark.parametrize(("severity", "seen"), [(None, True), ("P2", True), ("P1", False), ("P0", False)])
def test_severity(severity: Priority | None, seen: bool) -> None:
    text = told(CAUSE, OTHER, *DARK, severity=severity)
    assert ("few links" in text) == seen
    assert "does not run" in text and "nvidia-smi: not found" in text


def test_color_is_for_terminals() -> None:
    assert "\x1b[31mP0 FAIL\x1b[0m" in told(CAUSE, color=True)


def test_nodes_that_gave_nothing_are_counted() -> None:
    result = Result(
        0.0, 1.0, [], {}, looked=Looked(["n1", "n2"], of=9, ways={"ssh": ["n2"]}, silent={"n1": "no route"})
    )
    text = render(result)
    assert "1 of 2 nodes answered, a sample of 9: nothing is said of the others" in text
    assert result.to_json()["nodes"]["silent"] == [{"node": "n1", "why": "no route"}]


@pytest.mark.parametrize(
    ("findings", "rule"),
    [
        ([Finding("aws.node-status", "FAIL", "Failure", "P0", ["n1"])], "instance-failed"),
        ([Finding("node.gpu-count", "PASS", "8 of 8")], "clean"),
        ([Finding("node.gpu-count", "FAIL", "7 of 8", "P0", ["n1"])], None),
    ],
)
def test_where_nothing_is_left_to_try_the_bundle_is_named(findings: list[Finding], rule: str | None) -> None:
    result = Result(0.0, 1.0, findings, {one.check: "x" for one in findings}, job="42")
    text, told = render(result), result.to_json()["escalation"]
    assert ("nccl-slurm bundle 42 --with-doctor" in text) == (rule is not None)
    assert (told["rule"] if told else None) == rule


@pytest.mark.parametrize("more", [{"narrowed": ["--only node.disk"]}, {"left_out": ["accounting: no answer"]}])
def test_what_was_looked_at_in_part_is_not_clean(more: dict[str, Any]) -> None:
    result = Result(0.0, 1.0, [Finding("node.disk", "PASS", "room")], {"node.disk": "x"}, job="42", **more)
    assert result.escalation is None and "Nothing else is left" not in render(result)
    assert replace(result, narrowed=(), left_out=()).escalation is not None
