"""The decision table as data: Xid codes, other faults, NVLink's decode, limits. A site's rows take the place of ours.

`load` reads ``data/xid.toml``, ``data/faults.toml`` and ``data/nvlink.toml``, then a site's texts (``rules.d/*.toml``):
a row of the same code or id replaces the packaged one, any other is added.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from nccl_slurm.errors import ConfigError
from nccl_slurm.model import ACTIONS, CLASSES
from nccl_slurm.parse.xidrow import Xid, xid_row
from nccl_slurm.tables import packaged_text, rows_of, tables_of

__all__ = [
    "DECODED",
    "HARDWARE",
    "REGISTER_MEANS",
    "Decode",
    "FaultRow",
    "Limit",
    "Policy",
    "Register",
    "default",
    "load",
]

#: Classes that blame a machine.
HARDWARE = frozenset({"gpu-hw-ecc", "gpu-hw-lost", "nvlink-fabric"})
#: What bits of Xid 74's registers may mean, see data/nvlink.toml.
REGISTER_MEANS = ("ignore", "threshold", "sympathetic", "parity", "seating", "signal", "repeated", "unexpected")
#: Immediate actions of the table for Xid 144-150.
DECODED = ("IGNORE", "RESET_GPU", "XID_154_EVAL")
_FILES = ("xid.toml", "faults.toml", "nvlink.toml")
#: Tables of a site's file; ``row`` is read by `parse.patterns`, ``threshold`` by `history.thresholds`, ``reason`` by
#: `history.reasons`.
_TABLES = ("fault", "limit", "nvlink4", "nvlink5", "reason", "row", "threshold", "xid")
_FLAGS = ("fleet", "final", "hardware", "stands", "unused")
#: Told by its code, in [[xid]].
_XID = "kernel.xid"
_LARGEST = 1 << 32


@dataclass(frozen=True)
class FaultRow:
    """A fault that is no Xid. ``names``: its id and other names of the same. ``hardware`` False: never above a look."""

    id: str
    names: tuple[str, ...]
    match: tuple[str, ...]
    failure_class: str | None
    hardware: bool
    action: str
    after: tuple[str, ...]
    final: bool
    stands: bool
    source: str


@dataclass(frozen=True)
class Limit:
    """``value`` in the unit that the id ends in: ``-d`` days, ``-h`` hours, ``-s`` seconds; else a number."""

    id: str
    value: float
    means: str
    source: str


@dataclass(frozen=True)
class Register:
    """Bits of one of Xid 74's registers (1 to 7). ``report``: so many times on a link, and NVIDIA asks for a report."""

    register: int
    bits: frozenset[int]
    means: str
    report: int


@dataclass(frozen=True)
class Decode:
    """One line of NVIDIA's table for Xid 144-150. ``reason``, ``status`` None: any."""

    xid: int
    units: tuple[str, ...]
    reason: int | None
    status: int | None
    nvidia: str
    investigatory: str
    promoted: str | None


@dataclass(frozen=True)
class Policy:
    xids: Mapping[int, Xid]
    faults: Sequence[FaultRow]
    limits: Mapping[str, Limit]
    nvlink4: Sequence[Register]
    nvlink5: Sequence[Decode]

    def limit(self, name: str) -> float:
        return self.limits[name].value

    def row(self, name: str, text: str = "") -> FaultRow | None:
        """The row of a fault's name; one that wants words in the text goes before one that doesn't."""
        low = text.lower()
        rows = self._by_name.get(name, ())
        return next((row for row in rows if not row.match or any(_has(low, word) for word in row.match)), None)

    @cached_property
    def _by_name(self) -> dict[str, list[FaultRow]]:
        found: dict[str, list[FaultRow]] = {}
        for row in sorted(self.faults, key=lambda one: not one.match):
            for name in row.names:
                found.setdefault(name.partition("/")[0], []).append(row)
        return found


def _has(text: str, word: str) -> bool:
    return text.startswith(word[1:]) if word.startswith("^") else word in text


@cache
def default() -> Policy:
    """The packaged table alone."""
    return load()


def load(extra: Sequence[str] = (), patterns: Collection[str] | None = None) -> Policy:
    """``extra``: a site's TOML texts, in order. ``patterns``: ids of all line patterns, which a fault of the site may
    name beside readings; None: its id is not looked at. Raises ConfigError with the row that is wrong."""
    tables = [_table(text) for text in (*map(packaged_text, _FILES), *extra)]
    if patterns is not None:
        _known_faults(tables, patterns)
    return Policy(
        xids={xid.code: xid for xid in _rows(tables, "xid", _xid)},
        faults=tuple({row.id: row for row in _rows(tables, "fault", _fault)}.values()),
        limits=_known_limits({limit.id: limit for limit in _rows(tables, "limit", _limit)}, tables[: len(_FILES)]),
        nvlink4=tuple({(row.register, row.bits): row for row in _rows(tables, "nvlink4", _register)}.values()),
        nvlink5=tuple({(r.xid, r.units, r.reason, r.status): r for r in _rows(tables, "nvlink5", _decode)}.values()),
    )


def _table(text: str) -> Mapping[str, Any]:
    table = tables_of(text, "rules")
    for name in table:
        if name not in _TABLES:
            raise ConfigError(f"rules: {name!r}: unknown{_nearest(name, _TABLES)}; a file has {_listed(_TABLES)}")
    return table


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"[[{name}]]" for name in names)


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name[:100], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _rows(tables: Sequence[Mapping[str, Any]], name: str, read: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
    for table in tables:
        yield from map(read, rows_of(table, name, "rules"))


def _known_limits(limits: dict[str, Limit], packaged: Sequence[Mapping[str, Any]]) -> dict[str, Limit]:
    """A limit that nothing reads is a slip of the pen, and would be believed."""
    known = {row["id"] for table in packaged for row in table.get("limit", [])}
    for name in limits:
        if name not in known:
            raise ConfigError(f"limit {name!r}: unknown; known are {', '.join(sorted(known))}")
    return limits


def _known_faults(tables: Sequence[Mapping[str, Any]], patterns: Collection[str]) -> None:
    """A row for what nobody ever tells is a slip of the pen too."""
    packaged, site = tables[: len(_FILES)], tables[len(_FILES) :]
    known = {row.id.partition("/")[0] for row in _rows(packaged, "fault", _fault)} | set(patterns)
    for row in _rows(site, "fault", _fault):
        name = row.id.partition("/")[0]
        if name not in known:
            why = f"no line pattern and no reading has this name{_nearest(name, known)}"
            raise ConfigError(f"fault {row.id!r}: {why}; `nccl-slurm rules list` prints them")


def _xid(value: Mapping[str, Any]) -> Xid:
    what = f"Xid {value.get('code')!r}"
    row = xid_row(value)
    _number(value, "code", what, 1, 9999)
    _flags(value, what)
    for key in ("source", *(set(value) - {"code", "class", "after", *_FLAGS})):
        if not isinstance(value.get(key), str) or (key == "source" and not value[key]):
            raise ConfigError(f"{what}: {key} must be text")
    if row.hint not in HARDWARE and {row.action, *row.after} & {"reboot", "replace"}:
        raise ConfigError(f"{what}: reboot and replace need a class of hardware: {', '.join(sorted(HARDWARE))}")
    return row


def _flags(value: Mapping[str, Any], what: str) -> None:
    for key in _FLAGS:
        if not isinstance(value.get(key, False), bool):
            raise ConfigError(f"{what}: {key} must be true or false, without quotes")


def _number(value: Mapping[str, Any], key: str, what: str, least: int, most: int) -> None:
    """A whole number, where the row has it."""
    told = value.get(key, least)
    if isinstance(told, bool) or not isinstance(told, int) or not least <= told <= most:
        raise ConfigError(f"{what}: {key} must be a whole number from {least} to {most}")


def _fault(value: Mapping[str, Any]) -> FaultRow:
    what = f"fault {value.get('id')!r}"
    keys = {"id", "also", "match", "class", "hardware", "action", "after", "final", "stands", "source"}
    _check(value, keys, ("id", "action", "source"), what)
    _flags(value, what)
    if value["id"] == _XID:
        raise ConfigError(f"{what}: Xids are told by their codes: write [[xid]]")
    _one_of(value["action"], ACTIONS, f"{what}: action")
    if value.get("class") is not None:
        _one_of(value["class"], CLASSES, f"{what}: class")
    after = _strings(value, "after", what)
    for word in after:
        _one_of(word, ACTIONS, f"{what}: after")
    hardware = value.get("hardware") is True
    if not hardware and {value["action"], *after} & {"reboot", "replace"}:
        raise ConfigError(f"{what}: reboot and replace need hardware = true")
    return FaultRow(
        id=value["id"],
        names=(value["id"], *_strings(value, "also", what)),
        match=_strings(value, "match", what),
        failure_class=value.get("class"),
        hardware=hardware,
        action=value["action"],
        after=after,
        final=value.get("final") is True,
        stands=value.get("stands") is True,
        source=value["source"],
    )


def _limit(value: Mapping[str, Any]) -> Limit:
    what = f"limit {value.get('id')!r}"
    _check(value, {"id", "value", "means", "source"}, ("id", "source"), what)
    number = value.get("value")
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e9:
        raise ConfigError(f"{what}: value must be a number from 0 on")
    if value["id"].endswith("-share") and number > 1:
        raise ConfigError(f"{what}: value is a share, it must be from 0 to 1")
    return Limit(value["id"], float(number), str(value.get("means", "")), value["source"])


def _register(value: Mapping[str, Any]) -> Register:
    what = f"nvlink4 register {value.get('register')!r}"
    _check(value, {"register", "bits", "means", "report"}, ("means",), what)
    _one_of(value["means"], REGISTER_MEANS, f"{what}: means")
    bits = value.get("bits")
    if "register" not in value or not isinstance(bits, list):
        raise ConfigError(f"{what}: needs a number and a list of bits")
    _number(value, "register", what, 1, 7)
    _number(value, "report", what, 0, 1000)
    for bit in bits:
        _number({"bits": bit}, "bits", what, 0, 31)
    return Register(value["register"], frozenset(bits), value["means"], value.get("report", 0))


def _decode(value: Mapping[str, Any]) -> Decode:
    what = f"nvlink5 {value.get('xid')!r}"
    keys = {"xid", "unit", "reason", "status", "nvidia", "investigatory", "promoted"}
    _check(value, keys, ("nvidia", "investigatory"), what)
    for key in ("nvidia", "promoted"):
        if value.get(key) is not None:
            _one_of(value[key], DECODED, f"{what}: {key}")
    units = _strings(value, "unit", what)
    if "xid" not in value or not units:
        raise ConfigError(f"{what}: needs a number and units")
    _number(value, "xid", what, 144, 150)
    for key, most in (("reason", 0x3F), ("status", _LARGEST - 1)):
        _number(value, key, what, 0, most)
    told = (value.get("reason"), value.get("status"))
    return Decode(value["xid"], units, *told, value["nvidia"], value["investigatory"], value.get("promoted"))


def _check(value: Mapping[str, Any], keys: set[str], texts: Sequence[str], what: str) -> None:
    for key in value:
        if key not in keys:
            raise ConfigError(f"{what}: unknown key {key!r}")
    for key in texts:
        if not isinstance(value.get(key), str) or not value[key]:
            raise ConfigError(f"{what}: {key} must be text")


def _strings(value: Mapping[str, Any], key: str, what: str) -> tuple[str, ...]:
    items = value.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(f"{what}: {key} must be a list of texts")
    return tuple(items)


def _one_of(value: object, words: Sequence[str], what: str) -> None:
    if value not in words:
        raise ConfigError(f"{what} {value!r} is none of {', '.join(words)}")
