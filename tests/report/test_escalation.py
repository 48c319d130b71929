"""Whether anything is left to try: each row both ways, and what the report says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.bundle.support import _LINES
from nccl_slurm.doctor.check import Finding
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.model import ACTIONS, CLASSES, Evidence, Gap
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report.build import build
from nccl_slurm.report.escalation import _table, of_findings, of_report, questions
from nccl_slurm.report.text import render
from tests.attribute.scenarios import SCENARIOS, evidence, watchdog
from tests.recommend.past import NOW, after_reboots, line, machine, run_of
from tests.report.test_report import SCHEMA

ROWS = load_rows()


def made(run: Evidence, *events: MachineEvent, status: str = "final") -> dict[str, Any]:
    verdict = attribute(run)
    items = recommend(verdict, run, machines={"n2": machine(*events)}, now=NOW)
    report = build(run, verdict, items, status)
    jsonschema.validate(report, SCHEMA)
    return report


def lost() -> Evidence:
    return run_of(ROWS, line(79, "GPU has fallen off the bus."))


def test_a_reboot_is_left_to_try() -> None:
    assert made(lost())["escalation"] is None
    assert "Nothing else is left" not in render(made(lost()))


def test_a_fault_that_outlived_a_reboot_is_handed_on() -> None:
    report = made(lost(), *after_reboots(1, 79))
    assert report["recommendations"][0]["action"] == "replace"
    assert report["escalation"]["rule"] == "last-step"
    assert report["escalation"]["command"] == "nccl-slurm bundle 42 --run 1"
    text = render(report)
    assert "Nothing else is left to try here" in text
    assert text.index("Suggested command") < text.index("    nccl-slurm bundle 42 --run 1")


@pytest.mark.parametrize("status", ["pending", "settling", "live"])
def test_before_the_last_word_nothing_is_handed_on(status: str) -> None:
    assert made(lost(), *after_reboots(1, 79), status=status)["escalation"] is None


def test_reports_of_older_versions_have_no_such_key() -> None:
    report = made(lost(), *after_reboots(1, 79))
    del report["escalation"]
    jsonschema.validate(report, SCHEMA)
    assert "Nothing else is left" not in render(report)


def item(**more: Any) -> dict[str, Any]:
    base = {"target": "n2", "action": "investigate", "rule": "ladder.look", "step": 1, "why": "n2: words"}
    return {**base, "evidence": [], "commands": [], "run_by": "a person", **more}


def report_of(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    report = made(SCENARIOS["missing-rank"]())
    verdict = {**report["verdict"], **{key: value for key, value in more.items() if key in report["verdict"]}}
    rest = {key: value for key, value in more.items() if key not in verdict}
    return {**report, "recommendations": list(items), "verdict": verdict, **rest}


SUPPORT = "n2: Xid 81: NVIDIA CONTACT_SUPPORT, then CONTACT_SUPPORT"
UNNAMED = {"class": "collective-hang-unattributed", "culprits": [], "suspects": []}
SUSPECT = [{"rank": 1, "host": "n2", "gpu": None, "why": "w", "evidence": []}]


REPORTS: list[tuple[str | None, dict[str, Any]]] = [
    ("vendor-asks", report_of(item(why=SUPPORT))),
    ("vendor-asks", report_of(item(), item(why=SUPPORT, action="reboot", rule="ladder.reboot"))),
    (None, report_of(item(why=SUPPORT, action="none"))),
    (None, report_of(item(why="n2: Xid 79: NVIDIA RESTART_BM"))),
    ("last-step", report_of(item(rule="ladder.replace", action="replace", step=2))),
    ("last-step", report_of(item(rule="ladder.final", action="replace"))),
    (None, report_of(item(rule="ladder.reboot", action="reboot", step=2))),
    (None, report_of(item(rule="ladder.site-event", step=2))),
    ("reboot-did-not-help", report_of(item(step=2))),
    (None, report_of(item(step=1))),
    (None, report_of(item(rule="ladder.rebooted", step=2))),
    ("nobody-named", report_of(gaps=[], **UNNAMED)),
    (None, report_of(gaps=[{"source": "gpus", "why": "not there"}], **UNNAMED)),
    (None, report_of(gaps=[], **{**UNNAMED, "suspects": SUSPECT})),
    (None, report_of(gaps=[], **{**UNNAMED, "class": "rank-exception"})),
    (None, report_of(item(step=2), **{**UNNAMED, "class": "preempt-cancel"})),
    (None, report_of(item(step=2), **{**UNNAMED, "class": "benign"})),
    (None, {**report_of(item(step=2)), "verdict": None}),
]


@pytest.mark.parametrize(("rule", "report"), REPORTS)
def test_rows_of_reports(rule: str | None, report: dict[str, Any]) -> None:
    found = of_report(report)
    assert (found.rule if found else None) == rule


def test_a_hang_of_which_everything_was_observed() -> None:
    run = evidence([watchdog(0, 7), watchdog(1, 7)])
    verdict = attribute(run)
    report = {**build(run, verdict, (), "final"), "gaps": []}
    assert (found := of_report(report)) is not None and found.rule == "nobody-named"
    seen = build(replace(run, gaps=(Gap("gpus on n1", "not there"),)), verdict, (), "final")
    assert seen["escalation"] is None


@pytest.mark.parametrize(
    ("job", "command"),
    [
        ({"id": "42", "raw_id": 42, "run": 2}, "nccl-slurm bundle 42 --run 2"),
        ({"id": "42_1", "raw_id": 43, "run": None}, "nccl-slurm bundle 42_1"),
        ({"id": "4; rm -rf /", "raw_id": 4, "run": 1}, "nccl-slurm bundle 4 --run 1"),
        ({"id": None, "raw_id": None, "run": None}, "nccl-slurm bundle --logs PATH"),
    ],
)
def test_the_command_names_the_job(job: dict[str, Any], command: str) -> None:
    found = of_report(report_of(item(step=2), job=job))
    assert found is not None and found.command == command


def finding(check: str, status: str, **values: str) -> Finding:
    return Finding(check, status, "t", "P1" if status in ("FAIL", "WARN") else None, values=values)  # type: ignore[arg-type]


PASSED = finding("node.gpu-count", "PASS")


FINDINGS: list[tuple[str | None, list[Finding]]] = [
    ("reserved-capacity", [finding("aws.capacity", "WARN", plan="Active")]),
    (None, [finding("aws.capacity", "WARN", plan="Expired")]),
    (None, [finding("aws.capacity", "WARN", plan="")]),
    ("instance-failed", [PASSED, finding("aws.node-status", "FAIL")]),
    (None, [finding("aws.node-status", "WARN")]),
    ("clean", [PASSED, finding("aws.deep-check", "NOT-APPLICABLE")]),
    (None, [PASSED, finding("node.xid", "UNKNOWN")]),
    (None, [PASSED, finding("node.xid", "FAIL")]),
    (None, []),
]


@pytest.mark.parametrize(("rule", "findings"), FINDINGS)
def test_rows_of_findings(rule: str | None, findings: Sequence[Finding]) -> None:
    found = of_findings(findings, "42", whole=True)
    assert (found.rule if found else None) == rule
    if found:
        assert found.command == "nccl-slurm bundle 42 --with-doctor"
    seen_in_part = of_findings(findings, "42")
    assert (seen_in_part.rule if seen_in_part else None) == (None if rule == "clean" else rule)


def test_a_clean_cluster_of_which_no_job_is_known_to_fail() -> None:
    assert of_findings([PASSED], whole=True) is None
    assert of_findings([PASSED], "42", whole=True) is not None


def test_rows_name_what_exists() -> None:
    known = {
        "id",
        "of",
        "rule",
        "action",
        "step",
        "why",
        "class",
        "named",
        "gaps",
        "check",
        "status",
        "values",
        "clean",
    }
    code = "".join(
        path.read_text("utf-8")
        for path in resources.files("nccl_slurm").joinpath("recommend").iterdir()
        if path.name.endswith(".py")
    )
    for row in _table()["escalation"]:
        assert set(row) <= known | {"says", "source"}, row["id"]
        assert row["says"] and row["source"] and row["of"] in ("report", "doctor")
        assert set(row) - {"id", "of", "says", "source"}, f"{row['id']} holds always"
        assert set(row.get("action", ())) <= set(ACTIONS) and set(row.get("class", ())) <= set(CLASSES)
        assert all(f'"{rule}"' in code for rule in row.get("rule", ()))


def test_each_row_has_a_case_above() -> None:
    rows: Sequence[Mapping[str, Any]] = _table()["escalation"]
    assert {rule for rule, _ in REPORTS} | {rule for rule, _ in FINDINGS} == {None, *(row["id"] for row in rows)}


def test_each_question_has_an_answer_and_a_place_to_look() -> None:
    assert {question.id for question in questions()} == set(_LINES)
    assert all(question.ask and question.look for question in questions())
    assert all(row["source"] for row in _table()["ask"])


def test_each_row_is_in_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bundle.md").read_text("utf-8")
    assert all(f"| `{row['id']}` |" in text for row in _table()["escalation"])
