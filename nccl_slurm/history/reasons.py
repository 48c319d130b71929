"""Why a node is drained or down → whose words these are, what they mean, whether they speak of hardware. Pure.

Rows and their sources are in data/reasons.toml; a site's rows in ``rules.d`` come before them, and one of the same id
stands in the place of ours. Slurm's own strings begin a reason; the same words inside a person's sentence are that
person's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

from nccl_slurm import tables
from nccl_slurm.errors import ConfigError
from nccl_slurm.model import CLASSES
from nccl_slurm.tables import rows_of, tables_of

__all__ = ["OWNERS", "Reason", "Reasons", "load", "packaged"]

#: Who sets reasons. ``person`` is whoever typed what no row knows; ``cloud``: power saving and its programs.
OWNERS = ("slurm", "nhc", "hyperpod", "soperator", "slinky", "oci", "azure", "cloud", "nccl-slurm", "person", "unknown")
#: A site's own programs have names of their own.
_OWNER_MAX = 40
_TEXTS = ("id", "owner", "means", "source")
_KEYS = (*_TEXTS, "on", "match", "at", "class", "hardware", "under_way", "proof", "steps")
_PLACES = ("start", "clause")
_TRUTH: dict[object, bool | None] = {True: True, False: False, "unknown": None}


class Reason(NamedTuple):
    """``id`` is that of the row, None where none knows the text. ``failure_class``: the class that a run on such a node
    most often has, None where the reason tells none. ``hardware``: whether the words say that hardware is at fault;
    None where they leave it open, which is never read as no."""

    id: str | None
    failure_class: str | None
    owner: str
    hardware: bool | None


_NONE = Reason(None, None, "unknown", None)


@dataclass(frozen=True)
class Reasons:
    """``rows``: about nodes, in the order in which they are asked."""

    rows: tuple[Mapping[str, Any], ...]
    _find: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """A drain of a fleet is one text a thousand times."""
        object.__setattr__(self, "_find", lru_cache(maxsize=4096)(self._look))

    def classify(self, reason: str | None, by: str | None = None) -> Reason:
        """The first row that knows the text; ``by`` is the user who set it, where Slurm told one."""
        if not reason or not reason.strip():
            return _NONE
        row = self._find(reason)
        if row is None:
            return Reason(None, None, "unknown" if by is None else "person", None)
        return Reason(row["id"], row.get("class"), row["owner"], _TRUTH[row["hardware"]])

    def under_way(self, reason: str | None) -> bool:
        """Whether a program brings the node back right now, by the reason that it has set."""
        row = self._find(reason or "")
        return row is not None and row.get("under_way") is True

    def means(self, reason: str | None) -> str | None:
        """What the row says of it, with its id; None where no row knows it."""
        row = self._find(reason or "")
        return None if row is None else f"{row['means']} ({row['id']})"

    def _look(self, reason: str) -> Mapping[str, Any] | None:
        text = " ".join(reason.lower().split())
        return next((row for row in self.rows if _knows(row, text)), None)


@cache
def packaged() -> Reasons:
    """Rows of data/reasons.toml alone."""
    return load()


def load(extra: Sequence[str] = ()) -> Reasons:
    """``extra``: a site's TOML texts, in order; of two rows of one id the later counts. Raises ConfigError with the row
    that is wrong."""
    site = {
        row["id"]: row for text in extra for row in map(_checked, rows_of(tables_of(text, "rules"), "reason", "rules"))
    }
    ours = (row for row in tables.packaged("reasons.toml")["reason"] if row["id"] not in site)
    return Reasons(tuple(row for row in (*site.values(), *ours) if row["on"] == "node"))


def _checked(value: Mapping[str, Any]) -> Mapping[str, Any]:
    what = f"reason {value.get('id')!r}"
    for key in value:
        if key not in _KEYS:
            raise ConfigError(f"{what}: unknown key {key!r}")
    for key in _TEXTS:
        if not isinstance(value.get(key), str) or not value[key].strip():
            raise ConfigError(f"{what}: {key} must be text")
    row = {"on": "node", **value}
    _need(row["on"] == "node", what, 'on must be "node", or be left out')
    words = row.get("match")
    _need(isinstance(words, list) and bool(words), what, "match must be a list of texts")
    _need(all(isinstance(one, str) and one.strip() for one in row["match"]), what, "match must be a list of texts")
    _need("at" not in row or row["at"] in _PLACES, what, f"at must be one of {', '.join(_PLACES)}, or be left out")
    _need("class" not in row or row["class"] in CLASSES, what, f"class must be one of {', '.join(CLASSES)}")
    told = row.get("hardware")
    _need(isinstance(told, bool) or told == "unknown", what, 'hardware must be true, false or "unknown"')
    _need(isinstance(row.get("under_way", False), bool), what, "under_way must be true or false, without quotes")
    _need(len(row["owner"]) <= _OWNER_MAX, what, f"owner may have {_OWNER_MAX} characters")
    return {**row, "match": [" ".join(one.lower().split()) for one in row["match"]]}


def _need(holds: bool, what: str, why: str) -> None:
    if not holds:
        raise ConfigError(f"{what}: {why}")


def _knows(row: Mapping[str, Any], text: str) -> bool:
    words: Sequence[str] = row["match"]
    if row.get("at") == "start":
        return text.startswith(tuple(words))
    if row.get("at") == "clause":
        return text.startswith(tuple(words)) or any(f" : {word}" in text for word in words)
    return any(word in text for word in words)
