"""A part of a line that is too long, chosen by what the line was kept for and not by where it begins."""

from __future__ import annotations

__all__ = ["excerpt"]

_CUT = "..."
#: Share of the room that the beginning gets where nothing tells which part counts.
_HEAD = 0.6
#: A word that would be cut in two goes, up to this length.
_WORD = 32


def excerpt(text: str, limit: int, span: tuple[int, int] | None = None) -> str:
    """``text`` in at most ``limit`` characters (16 or more), with ``...`` for what is left out.

    ``span``: the part that counts, as indices. It stays whole where it fits, with what is before it rather than what
    is after it. None: head and tail stay, as programs print who speaks first and what happened last.
    """
    if len(text) <= limit:
        return text
    start, end = span or (0, len(text))
    if end - start > limit - 2 * len(_CUT):
        return _ends(text[start:end], limit, before=start > 0, after=end < len(text))
    further = end + len(_CUT) + (limit - (end - start)) // 4
    last = max(min(len(text), further, start + limit - len(_CUT)), limit)
    first = last - limit
    if first > 0:
        first += len(_CUT)
        word = text.find(" ", first, min(first + _WORD, start))
        first = word + 1 if word >= 0 else first
    if last < len(text):
        last -= len(_CUT)
        word = text.rfind(" ", max(end, last - _WORD), last)
        last = word if word >= 0 else last
    return f"{_CUT if first else ''}{text[first:last]}{_CUT if last < len(text) else ''}"


def _ends(text: str, limit: int, *, before: bool, after: bool) -> str:
    room = limit - len(_CUT) * (1 + before + after)
    if len(text) <= room + len(_CUT):
        room = len(text)
    head = int(room * _HEAD)
    middle = text if room == len(text) else f"{text[:head]}{_CUT}{text[len(text) - (room - head) :]}"
    return f"{_CUT if before else ''}{middle}{_CUT if after else ''}"
