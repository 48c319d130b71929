"""A word, a number, a reason or a whole line → the entries that explain it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from nccl_slurm.errors import InputError
from nccl_slurm.explain.entry import Entry
from nccl_slurm.parse.patterns import Rows

__all__ = ["look_up"]

#: ``79``, ``xid 79``, ``Xid79``, ``xid.79`` (as ``rules list`` has it).
_XID = re.compile(r"(?:xid[ .:#=-]*)?(\d{1,4})", re.I)
#: ``NVRM: Xid (PCI:0000:a1:00): 79, ...``
_XID_LINE = re.compile(r"\bXid \([^)]{1,40}\): (\d{1,4})\b")
#: A part of a reason is taken for the reason from this length on.
_PART_MIN = 5
#: Longest text that is looked at: an argument, not a file.
_TEXT_MAX = 4096
_NEAR_MAX = 5


def look_up(text: str, entries: Sequence[Entry], rows: Rows) -> list[Entry]:
    """By name, else as the noun of an id, as an Xid, as a reason or a line of a log. Never empty.

    Raises InputError with the nearest words where nothing is known by this one.
    """
    word = " ".join(text[:_TEXT_MAX].split())
    found = [entry for entry in entries if entry.name.lower() == word.lower()] or _noun(word.lower(), entries)
    number = _XID.fullmatch(word)
    if not found and number:
        return [_xid(int(number[1]), entries)]
    found = found or _joined(word.lower(), entries) or _by_line(word, entries, rows)
    if not found:
        raise InputError(_unknown(word, entries))
    return found


def _noun(word: str, entries: Sequence[Entry]) -> list[Entry]:
    """Of the guide's ids without their area: ``gpu-count`` of ``node.gpu-count``."""
    return [entry for entry in entries if entry.kind == "guide" and entry.name.partition(".")[2] == word]


def _joined(word: str, entries: Sequence[Entry]) -> list[Entry]:
    """Rules as reports put them together: ``first-failure.only+progress.behind``, ``live.missing.silent``,
    ``shared-cause.no-rank.resource-shm``. Words have plurals."""
    known = {entry.name: entry for entry in entries if entry.kind in ("rule", "word", "class")}
    if word.endswith("s") and word[:-1] in known:
        return [known[word[:-1]]]
    found = [_parts(name, known) for name in word.split("+")] if "." in word else []
    return [entry for parts in found for entry in parts] if all(found) else []


def _parts(name: str, known: Mapping[str, Entry]) -> list[Entry]:
    bare = name.removeprefix("live.") if name not in known else name
    rule, _, last = bare.rpartition(".")
    return [known[one] for one in ((bare,) if bare in known else (rule, last)) if one in known]


def _xid(code: int, entries: Sequence[Entry]) -> Entry:
    found = next((entry for entry in entries if entry.name == f"xid {code}"), None)
    if found is None:
        known = sorted(
            (int(e.name[4:]) for e in entries if e.kind == "xid"), key=lambda other: (abs(other - code), other)
        )
        near = ", ".join(f"xid {other}" for other in known[:_NEAR_MAX])
        raise InputError(
            f"Xid {code} is not in the table, so it decides nothing here: look at the node, never reboot or replace "
            f"for it alone; nearest: {near}"
        )
    return found


def _by_line(word: str, entries: Sequence[Entry], rows: Rows) -> list[Entry]:
    """The row that matches; where it is Slurm's own, or none, the reasons that the text holds come before it."""
    match = rows.find(word)
    line = [entry for entry in entries if match and entry.kind == "pattern" and entry.name == match[0].id]
    xid = _XID_LINE.search(word)
    if xid:
        return [entry for entry in entries if entry.name == f"xid {int(xid[1])}"] + line
    if line and line[0].producer != "slurm":
        return line
    return _reasons(word.lower(), entries) or line


def _reasons(word: str, entries: Sequence[Entry]) -> list[Entry]:
    whole = [entry for entry in entries if any(literal in word for literal in entry.words)]
    if whole or len(word) < _PART_MIN:
        return whole
    return [entry for entry in entries if any(word in literal for literal in entry.words)]


def _unknown(word: str, entries: Sequence[Entry]) -> str:
    words = {name.lower(): name for entry in entries for name in (entry.name, *entry.words)}
    inside = [name for name in words if name.startswith(f"{word.lower()}.")]
    near = inside or difflib.get_close_matches(word.lower()[:80], words, n=_NEAR_MAX, cutoff=0.5)
    hint = f"nearest: {', '.join(words[name] for name in near)}" if near else "nothing is near"
    shown = word if len(word) <= 80 else f"{word[:77]}..."
    return f"{shown!r} is no known word; {hint}; `nccl-slurm explain --list` shows all"
