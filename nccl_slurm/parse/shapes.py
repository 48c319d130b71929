"""Lines by their shape: a line without its digits. Ranks, steps and loops print the same shapes again and again.

Which literals a line can hold depends on its shape (a literal loses its digits too), so each shape is looked at once,
and a row's regex decides as ever. A shape may be said to hold a literal that none of its lines holds (``fo9o``): that
costs one regex, and finds nothing.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Iterator, Mapping, NamedTuple

from nccl_slurm.parse.patterns import Rows

__all__ = ["Held", "Shapes", "Thin"]

DIGITS = b"0123456789"
_THIN_KEYS = 20_000
#: Shapes that are remembered, and how long one may be: 2 MB.
_KNOWN, _LONGEST = 4096, 512
_NUMBER = DIGITS + b"/"
#: NCCL prints pointers and hashes in hexadecimal, in each process another; and what may reach into one.
_POINTER = re.compile(rb"(?<![0-9A-Za-z_])0x[0-9a-f]+(?![0-9A-Za-z_])")
_OVERLAPS = re.compile(rb"0x|0x?\Z|\A[0-9a-f]+(?:[^0-9A-Za-z_]|\Z)")


class Held(NamedTuple):
    """``rows``: numbers of the rows whose anchor may be in the line, ascending. ``follow``: lines to read below it."""

    rows: tuple[int, ...]
    follow: int


class Shapes:
    """``follow``: literal → lines that are read below it, whatever they say."""

    def __init__(self, rows: Rows, follow: Mapping[bytes, int]) -> None:
        self._anchors = [(anchor.translate(None, DIGITS), numbers) for anchor, numbers in rows.anchors.items()]
        self._follow = [(literal.translate(None, DIGITS), count) for literal, count in follow.items()]
        self._ends = [(anchor.translate(None, DIGITS), anchor) for anchor in rows.ends]
        self._known: dict[bytes, Held] = {}
        self._pointers = not any(_OVERLAPS.search(literal) for literal in (*rows.anchors, *follow))

    def held(self, line: bytes) -> Held:
        shape = line.translate(None, DIGITS)
        held = self._known.get(shape)
        if held is None and self._pointers and b"0x" in line:
            shape = _POINTER.sub(b"", line).translate(None, DIGITS)
            held = self._known.get(shape)
        if held is None:
            held = self._look(shape)
            if len(self._known) < _KNOWN and len(shape) <= _LONGEST:
                self._known[shape] = held
        return held

    def ends(self, raw: bytes, start: int) -> list[int]:
        """Where in ``raw`` from ``start`` on the literals stand that are looked for at both ends, ascending."""
        text = raw[start:] if start > 0 else raw
        shapes = b"\n".join(set(text.translate(None, DIGITS).split(b"\n")))
        there = [anchor for shape, anchor in self._ends if shape in shapes]
        return sorted(chain.from_iterable(_all(raw, anchor, max(0, start)) for anchor in there))

    def _look(self, shape: bytes) -> Held:
        rows = [numbers for anchor, numbers in self._anchors if anchor in shape]
        follow = [count for literal, count in self._follow if literal in shape]
        return Held(tuple(sorted(set(chain.from_iterable(rows)))), max(follow, default=0))


class Thin:
    """Counts the lines of one file that are like others (`patterns.Row.thin`), of which the first ``most`` are read.

    ``left_out``: row → lines.
    """

    def __init__(self, thin: Mapping[bytes, tuple[bytes, int]], most: int) -> None:
        self._most = most
        self.left_out: dict[int, int] = {}
        self._thin = [(anchor, len(anchor), mark, row) for anchor, (mark, row) in thin.items()]
        self._seen: dict[tuple[bytes, bytes, bytes], int] = {}
        self._known: dict[bytes, bytes] = {}  # what stands behind the number → the line's start, of lines left out

    def repeats(self, raw: bytes, at: int, end: int) -> bool:
        """Whether the line up to ``end`` is, but for its number, one that was left out; its anchor is at ``at``."""
        line = raw[at:end]
        for anchor, size, _, row in self._thin:
            if line.startswith(anchor):
                start = self._known.get(line[size:].lstrip(_NUMBER))
                if start is not None and raw.startswith(start, at - len(start)):
                    self.left_out[row] = self.left_out.get(row, 0) + 1
                    return True
        return False

    def leaves_out(self, line: bytes) -> bool:
        for anchor, _, mark, row in self._thin:
            front, found, behind = line.partition(anchor)
            if not found:
                continue
            what, found, rest = behind.partition(mark)
            if not found:
                continue
            key = front, what.lstrip(_NUMBER), rest.translate(None, DIGITS)
            count = self._seen.get(key, 0)
            if count >= self._most:
                self.left_out[row] = self.left_out.get(row, 0) + 1
                if len(self._known) < _THIN_KEYS:
                    self._known[behind.lstrip(_NUMBER)] = b"\n" + front
                return True
            if len(self._seen) < _THIN_KEYS:
                self._seen[key] = count + 1
        return False


def _all(raw: bytes, anchor: bytes, at: int) -> Iterator[int]:
    at = raw.find(anchor, at)
    while at >= 0:
        yield at
        at = raw.find(anchor, at + len(anchor))
