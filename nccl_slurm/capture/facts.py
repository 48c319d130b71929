"""Facts, ranks and gaps as they may stand in a record: forced into the shape of node-record/1 and its limits.

What comes from the child that reads a user's files is hostile: that process runs as the user. Nothing is believed but
its shape, and all of it has trust ``job``. fastjsonschema is not on compute nodes, so this is done by hand.
"""

from __future__ import annotations

import math
import re
from typing import Any, Iterable, Mapping

__all__ = ["MAX_FACTS", "clean_fact", "clean_facts", "clean_gaps", "clean_ranks", "gap", "text"]

MAX_FACTS = 20000
_MAX_RANKS = 4096
_MAX_GAPS = 500
_ROLES = ("cause", "consequence", "context", "benign")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_RANK = 10_000_000
_MAX_INT = 1 << 63


def text(value: Any, limit: int) -> str | None:
    """Cut to ``limit``; half characters (surrogates) are made visible, because no database or terminal takes them."""
    if not isinstance(value, str):
        return None
    if value.isascii():
        return value[:limit]
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", value[:limit])[:limit]


def _integer(value: Any, low: int = -_MAX_INT, high: int = _MAX_INT) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and low <= value <= high else None


def _number(value: Any) -> float | None:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if real and math.isfinite(value) and abs(value) < 1e15 else None


def _host(value: Any) -> str | None:
    return value if isinstance(value, str) and _HOST.match(value) else None


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    return text(value, 4096) if isinstance(value, str) else _number(value)


def _data(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    pairs = [(text(key, 100), one) for key, one in list(value.items())[:40]]
    return {
        key: [_scalar(item) for item in one[:20000]] if isinstance(one, (list, tuple)) else _scalar(one)
        for key, one in pairs
        if key is not None
    }


def clean_fact(value: Any, trust: str) -> dict[str, Any] | None:
    """None where it is no fact at all. ``trust`` is the reader's word; the fact's own claim is not looked at."""
    if not isinstance(value, Mapping):
        return None
    kind, line, producer = text(value.get("kind"), 100), text(value.get("text"), 4096), text(value.get("producer"), 40)
    role = value.get("role")
    if kind is None or line is None or producer is None or role not in _ROLES:
        return None
    return {
        "kind": kind,
        "text": line,
        "producer": producer,
        "role": role,
        "trust": trust,
        "hint": text(value.get("hint"), 60),
        "file": text(value.get("file"), 4096),
        "line": _integer(value.get("line")),
        "offset": _integer(value.get("offset")),
        "rank": _integer(value.get("rank"), 0, _MAX_RANK),
        "host": _host(value.get("host")),
        "time": _number(value.get("time")),
        "uncertainty_s": _number(value.get("uncertainty_s")),
        "data": _data(value.get("data")),
        "id": text(value.get("id"), 40) or "",
    }


def clean_facts(values: Any, trust: str, gaps: list[dict[str, str]]) -> list[dict[str, Any]]:
    given = values if isinstance(values, (list, tuple)) else []
    facts = [fact for fact in (clean_fact(value, trust) for value in given[:MAX_FACTS]) if fact is not None]
    if len(facts) < len(given):
        gaps.append(gap("facts", f"{len(given) - len(facts)} facts left out: malformed, or more than {MAX_FACTS}"))
    return facts


def clean_ranks(values: Any) -> list[dict[str, Any]]:
    given = values if isinstance(values, (list, tuple)) else []
    cleaned = (_rank(value) for value in given[:_MAX_RANKS])
    return [rank for rank in cleaned if rank is not None]


def _rank(value: Any) -> dict[str, Any] | None:
    number = _integer(value.get("rank"), 0, _MAX_RANK) if isinstance(value, Mapping) else None
    if number is None:
        return None
    files = value.get("files")
    names = [text(name, 4096) for name in (files if isinstance(files, (list, tuple)) else ())[:64]]
    step = text(value.get("step"), 20)
    return {
        **({} if step is None else {"step": step}),
        "rank": number,
        "host": _host(value.get("host")),
        "local_rank": _integer(value.get("local_rank")),
        "gpu": text(value.get("gpu"), 40),
        "pid": _integer(value.get("pid")),
        "exit": _integer(value.get("exit")),
        "first": _number(value.get("first")),
        "last": _number(value.get("last")),
        "uncertainty_s": _number(value.get("uncertainty_s")),
        "last_line": text(value.get("last_line"), 4096),
        "progress": _progress(value.get("progress")),
        "files": [name for name in names if name is not None],
    }


def _progress(value: Any) -> dict[str, dict[str, int]]:
    progress: dict[str, dict[str, int]] = {}
    for group, numbers in list(value.items())[:256] if isinstance(value, Mapping) else ():
        name = text(group, 200)
        if name is None or not isinstance(numbers, Mapping):
            continue
        known = ((text(key, 40), _integer(number)) for key, number in list(numbers.items())[:8])
        progress[name] = {key: number for key, number in known if key is not None and number is not None}
    return progress


def gap(source: str, why: str) -> dict[str, str]:
    return {"source": text(source, 200) or "", "why": text(why, 1000) or ""}


def clean_gaps(values: Iterable[Any]) -> list[dict[str, str]]:
    """Each once, in order, within the record's limit."""
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for value in values:
        if isinstance(value, Mapping):
            one = gap(str(value.get("source")), str(value.get("why")))
            seen.setdefault((one["source"], one["why"]), one)
    gaps = list(seen.values())
    if len(gaps) > _MAX_GAPS:
        gaps = [*gaps[: _MAX_GAPS - 1], gap("gaps", f"{len(gaps) - _MAX_GAPS + 1} more gaps left out")]
    return gaps
