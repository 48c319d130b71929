"""The rows of ``data/thresholds.toml``: windows and numbers of the statistics over nodes, each with its source.

A site's row in ``rules.d`` stands in the place of the packaged one of the same id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_slurm.errors import ConfigError
from nccl_slurm.model import CLASSES
from nccl_slurm.tables import packaged_text, rows_of, tables_of

__all__ = ["DAY", "SIGNALS", "Threshold", "Thresholds", "load_thresholds"]

DAY = 86400.0
#: In the order and the words of the paper that they are from (the rows have the source).
SIGNALS = (
    "excl_jobid_count",
    "xid_cnt",
    "tickets",
    "out_count",
    "multi_node_node_fails",
    "single_node_node_fails",
    "single_node_node_failure_rate",
)
_NUMBERS = ("value", "window_d", "least")
_KEYS = ("id", "means", "source", "classes", *_NUMBERS)
#: Ids whose value is a share.
_SHARES = frozenset(
    {
        "blame.fdr",
        "blame.second",
        "blame.trim",
        "blame.together_share",
        "exclude.share",
        "signal.single_node_node_failure_rate",
    }
)


@dataclass(frozen=True)
class Threshold:
    """``window_d``: days, None where the row has no window of its own. ``least``: cases that a share needs."""

    id: str
    value: float
    means: str
    source: str
    window_d: float | None = None
    least: float | None = None
    classes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Thresholds:
    rows: Mapping[str, Threshold]

    def __getitem__(self, name: str) -> float:
        return self.rows[name].value

    def signal(self, name: str) -> Threshold:
        return self.rows[f"signal.{name}"]

    @property
    def classes(self) -> frozenset[str]:
        """Of runs whose loss speaks of the machine or its network."""
        return self.rows["blame.classes"].classes


def load_thresholds(site: Sequence[str] = ()) -> Thresholds:
    """The package's rows, with those of the site's texts in their places. Raises ConfigError with the row's id."""
    rows = {row.id: row for row in _rows(packaged_text("thresholds.toml"))}
    known = frozenset(rows)
    for text in site:
        for row in _rows(text):
            if row.id not in known:
                raise ConfigError(f"threshold {row.id!r}: no such row; data/thresholds.toml has those that are known")
            rows[row.id] = row
    if rows["blame.stage_d"].value >= rows["blame.period_d"].value:
        raise ConfigError("threshold 'blame.stage_d': must be less than blame.period_d")
    return Thresholds(rows)


def _rows(text: str) -> Iterator[Threshold]:
    return map(_row, rows_of(tables_of(text, "thresholds"), "threshold", "thresholds"))


def _row(value: Mapping[str, Any]) -> Threshold:
    name = value.get("id")
    unknown = sorted(set(value) - set(_KEYS))
    if unknown:
        raise ConfigError(f"threshold {name!r}: unknown key {unknown[0]}; known here: {', '.join(_KEYS)}")
    for key in ("id", "means", "source"):
        if not isinstance(value.get(key), str):
            raise ConfigError(f"threshold {name!r}: {key} must be a string")
    numbers = {key: _number(value[key], key, str(name)) for key in _NUMBERS if key in value}
    if name == "blame.classes":
        return Threshold(name, 0.0, value["means"], value["source"], classes=_classes(value.get("classes")))
    if "value" not in numbers:
        raise ConfigError(f"threshold {name!r}: value is missing")
    if str(name).startswith("signal.") and "window_d" not in numbers:
        raise ConfigError(f"threshold {name!r}: window_d is missing")
    if name in _SHARES and numbers["value"] >= 1:
        raise ConfigError(f"threshold {name!r}: value is a share, it must be below 1")
    window, least = numbers.get("window_d"), numbers.get("least")
    return Threshold(str(name), numbers["value"], value["means"], value["source"], window, least)


def _number(value: Any, key: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"threshold {name!r}: {key} must be a number above 0, not {value!r}")
    return float(value)


def _classes(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not all(one in CLASSES for one in value if isinstance(one, str)):
        raise ConfigError("threshold 'blame.classes': classes must be a list of classes of docs/report.md")
    if not all(isinstance(one, str) for one in value):
        raise ConfigError("threshold 'blame.classes': classes must be a list of classes of docs/report.md")
    return frozenset(value)
