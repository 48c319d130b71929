"""The rows of ``data/patterns.toml`` and ``data/xid.toml``: which line forms are known, and what each one means.

Python before 3.11 has no tomllib, and node code runs from 3.8 on. So the TOML texts (ours and a site's) are compiled
once, where a TOML reader exists, into one JSON text; nodes read that. `Rows.hash` names exactly the rows that were
used and travels in every node record.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Iterable, Mapping, Pattern, Sequence

from nccl_slurm.errors import ConfigError
from nccl_slurm.model import CLASSES
from nccl_slurm.parse.literals import at_ends, everywhere
from nccl_slurm.parse.xidrow import ROLES, Xid, xid_row

__all__ = ["Row", "Rows", "Xid", "compile_rows", "load_rows", "rows_of"]

FORMAT = "nccl-slurm/patterns/1"
PRODUCERS = (
    "nccl",
    "torch",
    "gloo",
    "elastic",
    "flight-recorder",
    "slurm",
    "kernel",
    "cuda",
    "ofi",
    "python",
    "framework",
    "site",
)
WHERE = ("ends", "own", "everywhere")
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
#: Longest text that a regex sees. Log lines are hostile; this bounds the time of one match.
MATCH_LIMIT = 4096

_TEXT = ("id", "producer", "role", "versions", "source", "regex", "yes", "no")
_OPTIONAL = ("class", "distinct", "tail", "where", "thin")
_PACKAGE = 2  # texts of the package itself; what comes after them is a site's
_INT_LENGTH = 18
_NEGATIVE = re.compile(r"-[0-9]{1,18}\Z")


@dataclass(frozen=True)
class Row:
    """One line form. ``anchor``: every match contains at least one of these literals (the cheap first test).

    ``distinct`` names the data keys that make two facts of one kind different for the cap on repetition. ``tail``:
    so frequent (a line a collective) that only the last of a block are read. ``where`` says how large files are read
    for it: ``ends`` (looked for near both), ``own`` (not, but its lines stand in files that are read whole),
    ``everywhere`` (each anchor is searched for; a site's rows are so); None: the literals are in its lines.
    ``thin``: of a large file's lines that are alike but for the number behind the anchor, and for digits after this
    text, the first two are read.
    """

    id: str
    producer: str
    role: str
    pattern: str
    anchor: tuple[str, ...]
    hint: str | None = None
    versions: str = ""
    source: str = ""
    yes: str = ""
    no: str = ""
    distinct: tuple[str, ...] = ()
    tail: bool = False
    where: str | None = None
    thin: str | None = None

    @cached_property
    def regex(self) -> Pattern[str]:
        """Compiled when it is first used: most jobs' logs need a few of two hundred, and those cost a node more than
        the reading of a small run. Raises ConfigError (a site's row that this node's older Python can't read)."""
        try:
            return re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"pattern row {self.id!r}: regex: {error}") from None

    def data(self, text: str) -> dict[str, Any] | None:
        """What the row extracts from ``text``, or None if it does not match. Digits become int, ``_hex`` keys too.

        The kernel's own words stand at the start of its records; further on it quotes names that users choose.
        """
        look = self.regex.match if self.producer == "kernel" else self.regex.search
        found = look(text[:MATCH_LIMIT])
        if found is None:
            return None
        return _values(found.groupdict())

    def span(self, text: str) -> tuple[int, int] | None:
        """The part of ``text`` that the row matches, as indices; of a kernel's line with its stamp too."""
        found = self.regex.search(text[:MATCH_LIMIT])
        return None if found is None else found.span()


@dataclass(frozen=True)
class Rows:
    """All rows, in order: the first row that matches a line is the one that names it."""

    rows: tuple[Row, ...]
    xids: Mapping[int, Xid]
    hash: str
    anchors: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)  # literal → row numbers
    tails: frozenset[bytes] = frozenset()  # anchors that only ``tail`` rows use
    literals: tuple[bytes, ...] = ()  # what is searched for in large files
    ends: tuple[bytes, ...] = ()  # what is searched for near the ends of large files besides
    thin: Mapping[bytes, tuple[bytes, int]] = field(
        default_factory=dict
    )  # anchor → where digits begin to not count, row

    def match(self, text: str, numbers: Iterable[int]) -> tuple[Row, dict[str, Any]] | None:
        for number in numbers:
            row = self.rows[number]
            data = row.data(text)
            if data is not None:
                return row, data
        return None

    def find(self, text: str) -> tuple[Row, dict[str, Any]] | None:
        """As `match`, with the anchors looked for in ``text`` itself: for lines that no scan has chosen."""
        raw = text.encode("utf-8", "replace")
        numbers = sorted({number for anchor, rows in self.anchors.items() if anchor in raw for number in rows})
        return self.match(text, numbers)


def load_rows(path: str | None = None) -> Rows:
    """The compiled JSON at ``path``, else the package's own TOML (needs Python ≥ 3.11 or tomli).

    Raises ConfigError: file unreadable, malformed, or no TOML reader on this Python.
    """
    if path:
        return _rows(_read(path), path)
    return _rows(compile_rows(_read(os.path.join(DATA, "patterns.toml"))), "data/patterns.toml")


def rows_of(text: str) -> Rows:
    """The rows of what `compile_rows` made."""
    return _rows(text, "compiled rows")


def compile_rows(toml: str, extra: Sequence[str] = ()) -> str:
    """TOML texts → the one JSON text, with the package's Xid table in it. A later text replaces rows by id or code.

    Raises ConfigError with the row's id where a row is malformed.
    """
    rows: dict[str, dict[str, Any]] = {}
    xids: dict[str, dict[str, Any]] = {}
    for number, text in enumerate((_read(os.path.join(DATA, "xid.toml")), toml, *extra)):
        table = _parse(text)
        own: set[str] = set()
        for row in _tables(table, "row"):
            if str(row.get("id")) in own:
                raise ConfigError(f"pattern row {row.get('id')!r} stands twice in one text")
            own.add(str(row.get("id")))
            rows[str(row.get("id"))] = row if number < _PACKAGE else {"where": "everywhere", **row}
        for xid in _tables(table, "xid"):
            xids[str(xid.get("code"))] = xid
    for row in rows.values():
        _ = _row(row).regex
    for xid in xids.values():
        xid_row(xid)
    return json.dumps({"format": FORMAT, "row": list(rows.values()), "xid": list(xids.values())}, sort_keys=True)


def _values(groups: Mapping[str, str | None]) -> dict[str, Any]:
    """One loop without calls: this is done for every fact."""
    data: dict[str, Any] = {}
    for name, value in groups.items():
        if value is None:
            continue
        if name[-4:] == "_hex":
            data[name[:-4]] = int(value, 16)
        elif value.isdigit():
            data[name] = int(value) if len(value) <= _INT_LENGTH and value.isascii() else value
        elif value[:1] == "-" and _NEGATIVE.match(value):
            data[name] = int(value)
        else:
            data[name] = value
    return data


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: can't be read ({error}); compile the pattern rows again") from None


def _parse(text: str) -> Mapping[str, Any]:
    for name in ("tomllib", "tomli"):
        try:
            reader: Any = importlib.import_module(name)
        except ImportError:
            continue
        try:
            table: Mapping[str, Any] = reader.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not TOML: {error}") from None
        return table
    raise ConfigError("pattern rows: this Python has no TOML reader; give the compiled JSON (NCCL_SLURM_PATTERNS)")


def _tables(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ConfigError(f"pattern rows: [[{name}]] must be an array of tables")
    return value


def _rows(text: str, where: str) -> Rows:
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ConfigError(f"{where}: not {FORMAT}; compile the pattern rows again")
        rows = tuple(_row(row) for row in _tables(value, "row"))
        xids = {xid.code: xid for xid in (xid_row(one) for one in _tables(value, "xid"))}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    anchors = _anchors(rows)
    tails = frozenset(key for key, numbers in anchors.items() if all(rows[number].tail for number in numbers))
    return Rows(
        rows,
        xids,
        hashlib.sha256(text.encode()).hexdigest(),
        anchors,
        tails,
        literals=everywhere(
            (None if row.where else row.yes, row.anchor)
            for row in rows
            if row.where in (None, "everywhere") and not row.tail
        ),
        ends=at_ends(anchor for row in rows if row.where == "ends" for anchor in row.anchor),
        thin={
            anchor.encode(): (row.thin.encode(), number)
            for number, row in enumerate(rows)
            if row.thin
            for anchor in row.anchor
        },
    )


def _anchors(rows: Sequence[Row]) -> dict[bytes, tuple[int, ...]]:
    found: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        for anchor in row.anchor:
            found.setdefault(anchor.encode(), []).append(number)
    return {anchor: tuple(numbers) for anchor, numbers in found.items()}


def _row(value: Mapping[str, Any]) -> Row:
    name = value.get("id")
    _known(value, (*_TEXT, "anchor", *_OPTIONAL), name)
    for key in _TEXT:
        if not isinstance(value.get(key), str):
            raise ConfigError(f"pattern row {name!r}: {key} must be a string")
    _one_of(value["producer"], PRODUCERS, f"pattern row {name!r}: producer")
    _one_of(value["role"], ROLES, f"pattern row {name!r}: role")
    hint = value.get("class")
    if hint is not None:
        _one_of(hint, CLASSES, f"pattern row {name!r}: class")
    anchor, distinct = _strings(value.get("anchor")), _strings(value.get("distinct", []))
    where, thin = value.get("where"), value.get("thin")
    if where is not None:
        _one_of(where, WHERE, f"pattern row {name!r}: where")
    if thin is not None and (not isinstance(thin, str) or not thin):
        raise ConfigError(f"pattern row {name!r}: thin must be a string that is not empty")
    if not anchor or distinct is None or min(len(one) for one in anchor) < 4:
        raise ConfigError(f"pattern row {name!r}: anchor must be a string or strings of at least 4 characters")
    text = {key: value[key] for key in ("id", "producer", "role", "versions", "source", "yes", "no")}
    flags: dict[str, Any] = {"tail": bool(value.get("tail")), "where": where, "thin": thin}
    return Row(pattern=value["regex"], anchor=anchor, hint=hint, distinct=distinct, **flags, **text)


def _strings(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return None


def _known(value: Mapping[str, Any], keys: Sequence[str], name: object) -> None:
    for key in value:
        if key not in keys:
            raise ConfigError(f"pattern row {name!r}: unknown key {key!r}")


def _one_of(value: object, words: Sequence[str], what: str) -> None:
    if value not in words:
        raise ConfigError(f"{what} {value!r} is none of {', '.join(words)}")
