"""What is known of variables: which are read by anybody, which values harm, which contradict one another. From data.

``data/variables.toml`` has the names by who reads them, ``data/job.toml`` rows of judgement; each with its source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args

from nccl_slurm.doctor.check import Priority
from nccl_slurm.errors import ConfigError
from nccl_slurm.tables import packaged

__all__ = [
    "KINDS",
    "NUMBER",
    "WHEN",
    "Conflict",
    "Names",
    "Unread",
    "Value",
    "conflicts",
    "names",
    "near",
    "unread",
    "values",
]

#: What has to hold for a row beside its value: ``adapters``: the node has RDMA adapters.
WHEN = ("", "several-nodes", "away-from-rank-0", "several-ranks", "efa", "infiniband", "adapters")
KINDS = ("both", "differ", "first-larger", "product-over")
#: A value that a rule may compute with.
NUMBER = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
_NEAR = 0.86


@dataclass(frozen=True)
class Names:
    """``known``: name → who reads it. ``families``: patterns of names that a program makes up as it runs.
    ``prefixes``: only names that begin so are judged."""

    known: Mapping[str, str]
    families: Sequence[re.Pattern[str]]
    prefixes: Sequence[str]
    source: str

    def is_judged(self, name: str) -> bool:
        return name.startswith(tuple(self.prefixes))

    def is_read(self, name: str) -> bool:
        return name in self.known or any(family.fullmatch(name) for family in self.families)


@dataclass(frozen=True)
class Unread:
    """``name``: found in guides and scripts, read by nobody. ``instead``: what does what was meant."""

    name: str
    instead: str
    source: str


@dataclass(frozen=True)
class Value:
    """``match``: a pattern of the whole value, case ignored."""

    id: str
    name: str
    match: str
    status: str
    priority: Priority
    says: str
    instead: str
    source: str
    when: str = ""

    def holds(self, value: str) -> bool:
        return re.fullmatch(self.match, value.strip(), re.IGNORECASE) is not None


@dataclass(frozen=True)
class Conflict:
    """``both``: two variables that are set; ``differ``: to something else each. ``first-larger``: numbers.
    ``product-over``: more than ``limit``."""

    id: str
    names: Sequence[str]
    kind: str
    priority: Priority
    says: str
    instead: str
    source: str
    limit: int = 0

    def holds(self, first: str, second: str) -> bool:
        if self.kind == "both":
            return bool(first and second)
        if self.kind == "differ":
            return bool(first and second) and first != second
        if not (NUMBER.match(first) and NUMBER.match(second)):
            return False
        one, other = int(first), int(second)
        return one > other if self.kind == "first-larger" else one * other > self.limit


@cache
def names() -> Names:
    told = packaged("variables.toml")
    known = {name: str(owner["name"]) for owner in told["owner"] for name in owner["names"]}
    families = [re.compile(pattern) for owner in told["owner"] for pattern in owner.get("families", ())]
    source = "; ".join(f"{owner['name']}: {owner['source']}" for owner in told["owner"])
    return Names(known, families, tuple(told["prefixes"]), source)


def near(name: str) -> str | None:
    """The name that was meant, where one is near."""
    known = names().known
    found = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    return found[0] if found else None


@cache
def unread() -> Mapping[str, Unread]:
    return {one.name: one for one in (_row(Unread, row) for row in packaged("job.toml")["unread"])}


@cache
def values() -> Sequence[Value]:
    found = [_row(Value, row) for row in packaged("job.toml")["value"]]
    for one in found:
        _demand(one.when in WHEN and one.status in ("WARN", "FAIL"), one.id)
        re.compile(one.match)
    return found


@cache
def conflicts() -> Sequence[Conflict]:
    found = [_row(Conflict, row) for row in packaged("job.toml")["conflict"]]
    for one in found:
        _demand(one.kind in KINDS and len(one.names) == 2, one.id)
    return found


def _row(kind: Any, row: Mapping[str, Any]) -> Any:
    """Raises ConfigError for a row with an unknown key, a missing one, or no source."""
    what = str(row.get("id") or row.get("name"))
    _demand(set(row) <= {one.name for one in fields(kind)} and bool(row.get("source")), what)
    _demand(row.get("priority", "P0") in get_args(Priority), what)
    try:
        return kind(**row)
    except TypeError as error:
        raise ConfigError(f"job.toml: {what}: {error}") from None


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"job.toml: {what}: a key is unknown, or its value is none of those that there are")
