"""Rows of data/doctor.toml: each with its source, each of the right kind."""

from __future__ import annotations

import pytest

from nccl_slurm.doctor.table import load, table
from nccl_slurm.errors import ConfigError


def test_every_row_has_a_source_and_is_used() -> None:
    rows = table()
    assert len(rows.instances) >= 15 and len(rows.thresholds) >= 20
    assert all(one.source and one.means and one.value > 0 for one in rows.thresholds.values())
    assert all(one.source and (one.gpus > 0) != one.type.startswith("trn") for one in rows.instances.values())


@pytest.mark.parametrize(
    ("name", "known"), [("p5.48xlarge", True), ("ml.p5.48xlarge", True), ("p9", False), (None, False)]
)
def test_instances_by_name(name: str | None, known: bool) -> None:
    assert (table().instance(name) is not None) is known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[threshold]]\nid = 'x'\nvalue = 1\nmeans = 'm'", "source is missing"),
        ("[[threshold]]\nid = 'x'\nvalue = 'many'\nmeans = 'm'\nsource = 's'", "wrong kind"),
        ("[[threshold]]\nid = 'x'\nvalues = 1\nmeans = 'm'\nsource = 's'", "unknown"),
        ("[[instance]]\ntype = 'p5'\nsource = 's'", "missing"),
        ("[[instance", "not TOML"),
    ],
)
def test_wrong_rows(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(text)


def test_tables_of_others_are_left_alone() -> None:
    assert load("[[variable]]\nname = 'NCCL_TIMEOUT'").instances == {}
