"""Every row of what others check has an answer of ours and a test that is there; docs/guide/coverage.md says so."""

from __future__ import annotations

import pytest

from tests.doctor import coverage
from tests.doctor.coverage import Row


def test_every_row_has_a_check_and_a_test_that_is_there() -> None:
    assert coverage.problems() == []


def test_the_document_is_made_of_the_table() -> None:
    assert coverage.DOCUMENT.read_text("utf-8") == coverage.made()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row("x", "p", "w"), "x: has no answer, or two"),
        (Row("x", "p", "w", checks=["node.xid"], not_covered="why"), "x: has no answer, or two"),
        (Row("x", "p", "w", checks=["node.nothing"]), "x: node.nothing is no check"),
        (Row("x", "p", "w", by="words alone"), "x: has no test"),
        (Row("x", "p", "w", by="words", tests=["tests/doctor/test_coverage.py::test_no"]), "test_no: is not there"),
        (Row("x", "p", "w", by="words", tests=["tests/nowhere.py::test_it"]), "test_it: is not there"),
        (Row("W53", "p", "w", not_covered="why"), "W53: stands twice"),
    ],
)
def test_what_is_missing_is_told(row: Row, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, of_check = coverage.loaded()
    monkeypatch.setattr(coverage, "loaded", lambda: ([*rows, row], of_check))
    assert [one for one in coverage.problems() if problem in one]


def test_a_row_that_was_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, of_check = coverage.loaded()
    monkeypatch.setattr(coverage, "loaded", lambda: ([row for row in rows if row.id != "8.15"], of_check))
    assert "8.15: the row is missing" in coverage.problems()


def test_a_check_without_a_test_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, of_check = coverage.loaded()
    fewer = {check: tests for check, tests in of_check.items() if check != "node.xid"}
    monkeypatch.setattr(coverage, "loaded", lambda: (rows, fewer))
    assert "node.xid: no test is named for it" in coverage.problems()
