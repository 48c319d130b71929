"""Lines by their shape: a line without its digits. Ranks, steps and loops print the same shapes again and again.

Which literals a line can hold depends on its shape (a literal loses its digits too), so each shape is looked at once,
and a row's regex decides as ever. A shape may be said to hold a literal that none of its lines holds (``fo9o``): that
costs one regex, and finds nothing.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Iterable, Iterator, Mapping, NamedTuple

from nccl_slurm.parse.patterns import Rows

__all__ = ["Held", "Shapes", "Thin"]

DIGITS = b"0123456789"
_ZEROS = bytes.maketrans(DIGITS, b"0" * len(DIGITS))
_THIN_KEYS = 20_000
#: Bytes in which lines are looked at together.
_RUN = 8 << 10
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
        self._everywhere = [literal for literal in rows.literals if literal == literal.translate(None, DIGITS)]
        self._without: set[bytes] = set()  # shapes that hold none of `_ends`
        self._passed: set[bytes] = set()  # forms that hold none, or another literal besides
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
        """Where in ``raw`` from ``start`` on the literals stand that are looked for at both ends, ascending.

        Not all that stand in lines that hold another literal, which is looked for everywhere.
        """
        text = raw[start:] if start > 0 else raw
        forms = set(text.translate(_ZEROS).split(b"\n")) - self._passed
        there = self._there(forms) if forms else []
        return sorted(chain.from_iterable(_all(raw, anchor, max(0, start)) for anchor in there))

    def _there(self, forms: set[bytes]) -> list[bytes]:
        """Which of them may be in lines of these forms: with zeros for digits, since no literal hides in those."""
        shapes = set(b"\n".join(forms).translate(None, b"0").split(b"\n")) - self._without
        joined = b"\n".join(shapes)
        there = [(shape, anchor) for shape, anchor in self._ends if shape in joined]
        if not there:
            _remember(self._without, shapes)
            _remember(self._passed, forms)
            return []
        left = set()
        for form in forms:
            shape = form.translate(None, b"0")
            if not any(part in shape for part, _ in there) or self._is_read(form):
                _remember(self._passed, (form,))
            else:
                left.add(shape)
        return [anchor for part, anchor in there if any(part in shape for shape in left)]

    def _is_read(self, form: bytes) -> bool:
        """Whether the line is read for a literal that is looked for everywhere: one line and a short one."""
        return len(form) <= _LONGEST and b"\r" not in form[:-1] and any(one in form for one in self._everywhere)

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
        self._anchors = tuple(thin)
        self._seen: dict[tuple[bytes, bytes, bytes], int] = {}
        self._known: dict[bytes, bytes] = {}  # what stands behind the number → the line's start, of lines left out

    def repeats(self, raw: bytes, at: int, end: int) -> bool:
        """Whether the line up to ``end`` is, but for its number, one that was left out; its anchor is at ``at``."""
        return self._repeated(raw, at, end) is not None

    def repeated(self, raw: bytes, at: int) -> int:
        """The end of the line whose anchor is at ``at``, or of the last one below it that has to be left out too.

        Negative where the first has not. Processes print these lines one below the other: it takes a fifth of the time
        to look at them together.
        """
        if not raw.startswith(self._anchors, at):
            return -1
        end = raw.find(b"\n", at)
        found = None if end < 0 else self._repeated(raw, at, end) or self._first(raw, at, end)
        if found is None:
            return -1
        start, anchor, mark, row = found
        front = start + anchor
        return self._below(raw, end, start, front, mark, row) if raw.startswith(front, end) else end

    def _below(self, raw: bytes, end: int, start: bytes, front: bytes, mark: bytes, row: int) -> int:
        """The end of the last of the lines from ``end`` on that begin with ``front`` and are to be left out."""
        known, size, count = self._known, len(front), 0
        lines = raw[end + size : end + _RUN].split(front)
        lines[-1:] = lines[-1].split(b"\n", 1)[:-1]  # it may be cut
        if {known.get(text) for text in {text.lstrip(_NUMBER) for text in lines}} == {start}:  # mostly
            self.left_out[row] += len(lines)
            return end + size * len(lines) + sum(map(len, lines))
        for text in lines:
            if known.get(text.lstrip(_NUMBER)) == start:
                end += size + len(text)
                count += 1
                continue
            behind = text.partition(b"\n")[0]
            if not self._is_alike(start[1:], behind, mark):
                break
            end += size + len(behind)
            count += 1
            if len(behind) < len(text):  # another line is between this one and the next
                break
        self.left_out[row] += count
        return end

    def _repeated(self, raw: bytes, at: int, end: int) -> tuple[bytes, bytes, bytes, int] | None:
        """What the line begins with up to its number, in two parts; the mark and the row of the second one."""
        for anchor, size, mark, row in self._thin:
            if raw.startswith(anchor, at, end):
                start = self._known.get(raw[at + size : end].lstrip(_NUMBER))
                if start is not None and raw.startswith(start, at - len(start)):
                    self.left_out[row] = self.left_out.get(row, 0) + 1
                    return start, anchor, mark, row
        return None

    def _first(self, raw: bytes, at: int, end: int) -> tuple[bytes, bytes, bytes, int] | None:
        """As `_repeated`, of a line that differs in more than its number from those that were left out before."""
        begin = raw.rfind(b"\n", 0, at)
        front = raw[begin + 1 : at]
        if begin < 0 or end - begin > _RUN or raw.find(b"\r", begin, end) >= 0 or any(map(front.count, self._anchors)):
            return None
        for anchor, size, mark, row in self._thin:
            if raw.startswith(anchor, at) and self._is_alike(front, raw[at + size : end], mark):
                self.left_out[row] = self.left_out.get(row, 0) + 1
                return raw[begin:at], anchor, mark, row
        return None

    def leaves_out(self, line: bytes) -> bool:
        for anchor, _, mark, row in self._thin:
            if mark not in line or anchor not in line:
                continue
            front, _, behind = line.partition(anchor)
            if self._is_alike(front, behind, mark):
                self.left_out[row] = self.left_out.get(row, 0) + 1
                return True
            key = _key(front, behind, mark)
            if key is not None and len(self._seen) < _THIN_KEYS:
                self._seen[key] = self._seen.get(key, 0) + 1
        return False

    def _is_alike(self, front: bytes, behind: bytes, mark: bytes) -> bool:
        """Whether so many have been read already; the next one that is the same but for its number is known at once."""
        key = _key(front, behind, mark)
        if key is None or self._seen.get(key, 0) < self._most:
            return False
        if len(self._known) < _THIN_KEYS:
            self._known[behind.lstrip(_NUMBER)] = b"\n" + front
        return True


def _key(front: bytes, behind: bytes, mark: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Of lines that are alike, by what stands in front of the anchor and behind it; None without the mark."""
    what, found, rest = behind.partition(mark)
    return (front, what.lstrip(_NUMBER), rest.translate(None, DIGITS)) if found else None


def _remember(known: set[bytes], some: Iterable[bytes]) -> None:
    if len(known) < _KNOWN:
        known.update(one for one in some if len(one) <= _LONGEST)


def _all(raw: bytes, anchor: bytes, at: int) -> Iterator[int]:
    at = raw.find(anchor, at)
    while at >= 0:
        yield at
        at = raw.find(anchor, at + len(anchor))
