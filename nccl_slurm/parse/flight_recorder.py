"""torch's flight recorder dumps: a pickle of plain dicts, or the same as JSON. Both come from a job and are hostile.

gloo's dumps say ``scheduled`` for ever and tell completion by ``retired``; their ``pg_config`` is wrong. The buffer is
a ring: old entries are gone, so the counters of ``pg_status`` and the entries are read together.
"""

from __future__ import annotations

import io
import json
import pickle
from typing import Any, Callable, ClassVar, Iterable, Mapping, NamedTuple

__all__ = ["SIZE_LIMIT", "Dump", "Group", "looks_like", "read"]

#: torch keeps 2,000 entries (TORCH_FR_BUFFER_SIZE) unless told otherwise: with 30 to 50 frames each these are 2 to 7 MB
#: and 1.2 million steps of the unpickler.
SIZE_LIMIT = 16 << 20
#: A step of one byte makes an object of 70 to 100 bytes, so a file could ask for a hundred times its size.
VALUES_LIMIT = 3_000_000
_TOO_LARGE = "flight recorder dump too large to read"
_RECENT = 32
#: Ranks enter one collective within less than this before and after another, or the older one waits in it.
_APART_S = 1.0
_GROUPS = 200
_STATUS = (
    ("enqueued", "last_enqueued_collective"),
    ("started", "last_started_collective"),
    ("completed", "last_completed_collective"),
)


class Group(NamedTuple):
    """One process group as one rank saw it. Counters: sequence numbers of collectives, -1 for none yet.

    ``waiting``: the oldest collective that is not completed. ``recent``: ``seq op sizes`` of the last ones. ``held``:
    first and last sequence number of the collectives that the ring still holds.
    """

    name: str
    description: str
    counters: dict[str, int]
    waiting: dict[str, Any] | None
    recent: list[str]
    held: tuple[int, int] | None = None


class Dump(NamedTuple):
    version: str
    groups: list[Group]
    world_size: int | None
    since: float | None = None  # when its oldest and newest entries were made, seconds since 1970
    until: float | None = None

    def is_of_a_run_before(self, other: Dump) -> bool:
        """All of it was made before any of ``other``, which has some of the same collectives: a restart counts anew.

        A rank that stopped long ago in the same run shares with the others what it did last.
        """
        if self.until is None or other.since is None or other.since - self.until < _APART_S:
            return False
        theirs = {group.name: group.held for group in other.groups}
        return any(_overlap(group.held, theirs.get(group.name)) for group in self.groups)


#: Keys of a dump or of its entries; JSON dumps have their keys sorted, so a long list of entries comes first.
_KEYS = (b"pg_config", b"entries", b"profiling_name", b"record_id", b"nccl_comm_state", b"collective_seq_id")


def looks_like(name: str, first: bytes) -> bool:
    """By its usual names, or a pickle or JSON object that starts with a dump's keys."""
    base = name.rpartition("/")[2].lower()
    known = [key for key in _KEYS if key in first]
    if first[:1] == b"\x80" and first[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "trace" in base or "fr" in base or bool(known)
    quoted = [key for key in known if b'"' + key + b'"' in first]
    return first.lstrip()[:1] == b"{" and len(quoted) > 1


def read(raw: bytes) -> Dump:
    """Raises ValueError with a reason; nothing else."""
    try:
        value = _load(raw)
        if isinstance(value, list):  # torch 2.2: the entries alone
            value = {"entries": value}
        if not isinstance(value, dict):
            raise ValueError("no flight recorder dump")
        entries = [entry for entry in _list(value.get("entries")) if isinstance(entry, dict)]
        config = _dict(value.get("pg_config"))
        names = _names(entries, config)
        groups = _groups(entries, _dict(value.get("pg_status")), names)
        made = [time for time in map(_made, entries) if time is not None]
        since, until = min(made, default=None), max(made, default=None)
        return Dump(_text(value.get("version"), 40), groups[:_GROUPS], _world(config), since, until)
    except ValueError:
        raise
    except MemoryError:
        raise ValueError(_TOO_LARGE) from None
    except Exception as error:  # a hostile file can break the reader in any way; none may reach a user
        raise ValueError(f"flight recorder dump can't be read: {type(error).__name__}") from None


_PLAIN = (
    "PROTO STOP FRAME MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT "
    "BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS "
    "BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE"
)


def _counted(step: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(self: _Unpickler) -> None:
        self.steps += 1
        if self.steps > VALUES_LIMIT:
            raise ValueError(_TOO_LARGE)
        step(self)

    return counted


class _Unpickler(pickle._Unpickler):
    """Plain values only: no classes, no calls, and dict keys that are text or numbers.

    The Python version on purpose: the one in C allocates memory for any memo index that a file names. Tuples as keys
    are refused since hashing nested shared ones takes exponential time.
    """

    steps = 0
    dispatch: ClassVar[dict[int, Any]] = {
        getattr(pickle, name)[0]: _counted(pickle._Unpickler.dispatch[getattr(pickle, name)[0]])
        for name in _PLAIN.split()
    }

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError("flight recorder dump holds more than plain values")

    def _load_setitems(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._set(items)

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._set([key, value])

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(target, dict) or any(type(key) not in (str, int) for key in items[::2]):
            raise ValueError("flight recorder dump has keys that are no text")
        target.update(zip(items[::2], items[1::2]))

    dispatch[pickle.SETITEM[0]] = _counted(_load_setitem)
    dispatch[pickle.SETITEMS[0]] = _counted(_load_setitems)


def _load(raw: bytes) -> Any:
    if raw.lstrip()[:1] == b"{":
        if sum(raw.count(sign) for sign in (b",", b"[", b"{")) > VALUES_LIMIT:
            raise ValueError(_TOO_LARGE)
        return json.loads(raw.decode("utf-8", "replace"), parse_int=lambda digits: int(digits[:19]))
    return _Unpickler(io.BytesIO(raw), encoding="utf-8", errors="replace").load()


def _names(entries: Iterable[Mapping[str, Any]], config: Mapping[Any, Any]) -> dict[str, tuple[str, str]]:
    """Id of a group in this process → its shared name and description. Entries know it better than pg_config."""
    names = {}
    for key, group in config.items():
        if isinstance(group, dict) and str(key):
            names[str(key)] = (_text(group.get("name", key), 80), _text(group.get("desc"), 120))
    for entry in entries:
        group = entry.get("process_group")
        if isinstance(group, (list, tuple)) and len(group) == 2:
            names[_text(entry.get("pg_id"), 80)] = (_text(group[0], 80), _text(group[1], 120))
    return names


def _groups(
    entries: list[dict[str, Any]], status: Mapping[Any, Any], names: Mapping[str, tuple[str, str]]
) -> list[Group]:
    by_group: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_group.setdefault(_text(entry.get("pg_id"), 80), []).append(entry)
    ids = sorted({*by_group, *(str(key) for key in status)})
    told = {str(key): _dict(value) for key, value in status.items()}
    return [_group(names.get(one, (one, "")), by_group.get(one, []), told.get(one, {})) for one in ids]


def _group(name: tuple[str, str], entries: list[dict[str, Any]], status: Mapping[str, Any]) -> Group:
    collectives = [entry for entry in entries if not entry.get("is_p2p") and _seq(entry) is not None]
    seen = {"enqueued": -1, "started": -1, "completed": -1}
    for entry in collectives:
        for key in _reached(entry):
            seen[key] = max(seen[key], _number(entry))
    for key, long in _STATUS:
        value = status.get(long)
        if isinstance(value, int):
            seen[key] = max(seen[key], min(value, 1 << 62))
    open_ones = [entry for entry in collectives if "completed" not in _reached(entry)]
    open_ones = [entry for entry in open_ones if _number(entry) > seen["completed"]]
    waiting = min(open_ones, key=_number, default=None)
    recent = [_line(entry) for entry in collectives[-_RECENT:]]
    numbers = [_number(entry) for entry in collectives]
    held = (min(numbers), max(numbers)) if numbers else None
    return Group(name[0], name[1], seen, None if waiting is None else _details(waiting), recent, held)


def _overlap(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _seq(entry: Mapping[str, Any]) -> int | None:
    value = entry.get("collective_seq_id", entry.get("seq_id"))  # the latter to torch 2.3
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _number(entry: Mapping[str, Any]) -> int:
    """As `_seq`, of an entry that has one."""
    return _seq(entry) or 0


def _reached(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """NCCL tells by ``state``; gloo's state never changes and ``retired`` means done."""
    done = entry.get("state") == "completed"
    if _op(entry).startswith("gloo:"):
        done = done or entry.get("retired") is True
    if done:
        return ("enqueued", "started", "completed")
    return ("enqueued", "started") if entry.get("state") == "started" else ("enqueued",)


def _op(entry: Mapping[str, Any]) -> str:
    return _text(entry.get("profiling_name"), 80)


def _details(entry: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seq": _number(entry),
        "op": _op(entry),
        "state": _text(entry.get("state"), 20),
    }
    for key in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes"):
        found[key] = _plain(entry.get(key))
    if isinstance(entry.get("timeout_ms"), int):
        found["timeout_ms"] = entry["timeout_ms"]
    made = _made(entry)
    if made is not None:
        found["created"] = made
    return found


def _made(entry: Mapping[str, Any]) -> float | None:
    """When the entry was made, seconds since 1970."""
    for key, unit in (("time_created_ns", 1e9), ("time_created_us", 1e6)):
        if isinstance(entry.get(key), int):
            return float(min(entry[key], 1 << 62) / unit)
    return None


def _line(entry: Mapping[str, Any]) -> str:
    return f"{_number(entry)} {_op(entry)} {_plain(entry.get('input_sizes'))}"[:200]


def _plain(value: Any) -> str:
    """``[[64, 64]]`` from a list or a tuple of such; bounded."""
    return str(_shallow(value, 2))[:200]


def _shallow(value: Any, depth: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_shallow(one, depth - 1) for one in value[:16]] if depth >= 0 else "…"
    return value if isinstance(value, (int, float)) else _text(value, 40)


def _world(config: Mapping[Any, Any]) -> int | None:
    """Ranks of the default group; ``ranks`` is a list, or its text in older versions."""
    for key, group in config.items():
        if str(key) and isinstance(group, dict) and (group.get("desc") == "default_pg" or str(key) == "0"):
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                ranks = [one for one in ranks.strip("[]").split(",") if one.strip().isdigit()]
            if isinstance(ranks, (list, tuple)) and ranks:
                return len(ranks)
    return None


def _text(value: Any, limit: int) -> str:
    """Text of a plain value. Never ``str()`` of a container: one that holds itself many times over never ends."""
    return str(value)[:limit] if isinstance(value, (str, int, float)) else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
