"""The rows of thresholds.toml, and what a site may write in their place."""

from __future__ import annotations

import math

import pytest

from nccl_slurm.errors import ConfigError
from nccl_slurm.history.thresholds import SIGNALS, load_thresholds
from tests.bench.lossy_fleet import BASE_RATE

ROW = '[[threshold]]\nid = "blame.fdr"\nmeans = "m"\nsource = "s"\n'


def test_every_row_has_its_meaning_and_its_source() -> None:
    rows = load_thresholds().rows
    assert all(row.means and row.source for row in rows.values())
    assert {name for name in rows if name.startswith("signal.")} == {f"signal.{name}" for name in SIGNALS}
    assert {row.window_d for name, row in rows.items() if name.startswith("signal.")} == {28.0}


def test_a_sites_row_stands_in_the_place_of_ours() -> None:
    changed = load_thresholds([ROW + "value = 0.01\n", "[[row]]\nid = 'a pattern'\n"])
    assert changed["blame.fdr"] == 0.01
    assert changed["blame.least"] == load_thresholds()["blame.least"]
    assert load_thresholds([ROW + "value = 0.01\n", ROW + "value = 0.02\n"])["blame.fdr"] == 0.02


def test_a_sites_classes() -> None:
    row = '[[threshold]]\nid = "blame.classes"\nmeans = "m"\nsource = "s"\nclasses = ["unknown"]\n'
    assert load_thresholds([row]).classes == {"unknown"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not toml", "not TOML"),
        ("threshold = 3", "array of tables"),
        ("threshold = [3]", "array of tables"),
        (ROW, "value is missing"),
        (ROW + "value = 0\n", "above 0"),
        (ROW + "value = -1\n", "above 0"),
        (ROW + "value = nan\n", "above 0"),
        (ROW + "value = inf\n", "above 0"),
        (ROW + "value = true\n", "above 0"),
        (ROW + 'value = "0.05"\n', "above 0"),
        (ROW + "value = 1.5\n", "below 1"),
        (ROW + "value = 0.05\nvalues = 3\n", "unknown key values"),
        (ROW.replace("blame.fdr", "blame.fdx") + "value = 0.05\n", "no such row"),
        (ROW.replace('source = "s"\n', "") + "value = 0.05\n", "source must be a string"),
        (ROW.replace("blame.fdr", "signal.xid_cnt") + "value = 3\n", "window_d is missing"),
        (ROW.replace("blame.fdr", "blame.stage_d") + "value = 90\n", "less than blame.period_d"),
        (ROW.replace("blame.fdr", "blame.classes"), "list of classes"),
        (ROW.replace("blame.fdr", "blame.classes") + 'classes = ["gpu"]\n', "list of classes"),
        (ROW.replace("blame.fdr", "blame.classes") + "classes = [3]\n", "list of classes"),
    ],
)
def test_a_wrong_row_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_thresholds([text])


@pytest.mark.parametrize(
    ("name", "percent"), [("out_count", 0.09), ("multi_node_node_fails", 1.5), ("single_node_node_fails", 1.5)]
)
def test_the_share_of_good_nodes_that_reach_a_signal_is_as_its_source_says(name: str, percent: float) -> None:
    """One failure in 154 days, Poisson, over the signal's window."""
    row = load_thresholds().signal(name)
    mean = BASE_RATE * 24 * (row.window_d or 0.0)
    below = sum(math.exp(-mean) * mean**count / math.factorial(count) for count in range(int(row.value)))
    assert 100 * (1 - below) == pytest.approx(percent, rel=0.06)
    assert f"{percent:g} %" in row.source or name == "single_node_node_fails"
