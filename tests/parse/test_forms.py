"""The table of line forms (forms.toml): what each line of each producer and version gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.parse.patterns import load_rows
from tests.parse.conftest import Read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMS: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("forms.toml").read_text())
CASES = [(producer, form) for producer, forms in FORMS.items() for form in forms]


@pytest.mark.parametrize(("producer", "form"), CASES, ids=[f"{name}-{form['versions']}" for name, form in CASES])
def test_a_line_of_a_producer(producer: str, form: dict[str, Any], read: Read) -> None:
    parsed = read(("job.log", f"start\n\n{form['line']}\n"))
    if form["kind"] == "none":
        assert parsed.facts == ()
        return
    (fact,) = parsed.facts
    assert (fact.kind, fact.producer, fact.line, fact.offset) == (form["kind"], producer, 3, 7)
    assert fact.rank == form.get("rank")
    expected = form.get("data", {})
    assert {key: fact.data.get(key) for key in expected} == expected
    assert (fact.time is None) == (fact.uncertainty_s is None) == ("clock" not in fact.data)


def test_the_table_has_every_producer() -> None:
    assert {row.producer for row in load_rows().rows} == set(FORMS)
