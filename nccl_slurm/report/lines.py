"""A fact's text as a report prints it: whole, on some lines; of one that is longer the part that it was kept for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from nccl_slurm.excerpt import excerpt
from nccl_slurm.parse.patterns import Row, load_rows
from nccl_slurm.report.visible import visible

__all__ = ["LINES_MAX", "WIDTH", "alike", "evidence_lines"]

WIDTH = 150
#: Lines that one fact gets. torch's watchdog says on two to four what this is about.
LINES_MAX = 4
_INDENT, _FURTHER = "    ", "      "
_WIDE = WIDTH - len(_FURTHER)
#: A line ends at a space among its last ones.
_RAGGED = 30
_DIGITS = re.compile(r"\d+")
_ROOM = (LINES_MAX - 1) * (_WIDE - _RAGGED) + _WIDE


def evidence_lines(fact: Mapping[str, Any], *, short: bool = False) -> list[str]:
    """Indented, safe for a terminal, `LINES_MAX` at most; ``short``: one."""
    shown = _shown(fact, _WIDE if short else _ROOM)
    return [(_FURTHER if number else _INDENT) + line for number, line in enumerate(_wrapped(shown))]


def alike(fact: Mapping[str, Any]) -> tuple[str, str]:
    """What many ranks print, but for their numbers."""
    return str(fact["kind"]), _DIGITS.sub("0", str(fact["text"]))


def _wrapped(text: str) -> Iterator[str]:
    while len(text) > _WIDE:
        at = text.rfind(" ", _WIDE - _RAGGED, _WIDE + 1)
        at = at if at > 0 else _WIDE
        yield text[:at]
        text = text[at:].lstrip(" ")
    yield text


def _shown(fact: Mapping[str, Any], room: int) -> str:
    text = str(fact["text"]).strip()
    shown = visible(text)
    if len(shown) <= room:
        return shown
    start, end = _matched(str(fact["kind"]), text) or (0, 0)
    span = (len(visible(text[:start])), len(visible(text[:end]))) if end else None
    return excerpt(shown, room, span)


def _matched(kind: str, text: str) -> tuple[int, int] | None:
    """By the packaged rows: a report does not say by which of a site's a line was read."""
    row = _rows().get(kind)
    return None if row is None else row.span(text)


@cache
def _rows() -> Mapping[str, Row]:
    return {row.id: row for row in load_rows().rows}
