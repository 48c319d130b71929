"""The candidates of a large file, from the places where a search found literals.

As `scan.Scan` for the reader, but the text between the places is never looked at: only the lines at the places are, and
every anchor of the rows is looked for there. At both ends of the file the anchors are looked for that hold no literal.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Callable, Generator, Iterable, Iterator

from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.scan import FOLLOW_INSIDE, HEAD, LINE_LIMIT, TAIL, Candidate, Piece, text_of
from nccl_slurm.parse.search import Hit
from nccl_slurm.parse.shapes import Shapes, Thin

__all__ = ["WHOLE", "Sift", "is_special", "shapes_of"]

#: Files up to this size are read whole.
WHOLE = 128 << 10
#: Of lines that are alike (`patterns.Row.thin`) so many are read.
_ALIKE = 2
_WINDOW = 32 << 10
_COUNT = 1 << 20
#: Of the tail, what is searched for `Rows.ends`.
_ENDS = 32 << 10
_LAST = 32
#: A kernel log (as dmesg, its -r, -x, -d, -e or -T, syslog or journald's JSON have it) or an answer of NCCL's RAS: not
#: the lines of a rank, so the literals are not made for them.
_SPECIAL = re.compile(
    rb"(?:<\d{1,3}>|kern {0,4}:\w{1,8} {0,8}: )?\[ {0,12}\+?\d{1,10}\.\d{6}\]"
    rb"|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d \d{4}\] "
    rb"|Job summary\r?\Z|Communicators\.\.\.|#\d{1,6}-\d{1,6} \([0-9a-f]{8,16}\) "
)
_SPECIAL_STARTS = b"<k[JC#"
_JOURNAL = re.compile(rb"\"(?:_TRANSPORT|SYSLOG_IDENTIFIER)\" ?: ?\"kernel\"")


def is_special(first: bytes) -> bool:
    """Whether a file that begins so has to be read whole, whatever its size."""
    if b" kernel: " in first or (b'"kernel"' in first and _JOURNAL.search(first)):
        return True
    return any(line[:1] in _SPECIAL_STARTS and _SPECIAL.match(line) for line in first.split(b"\n"))


def shapes_of(rows: Rows) -> Shapes:
    """For all files that are read with these rows."""
    return Shapes(rows, FOLLOW_INSIDE)


class Sift:
    """Iterate once; ``bytes``, ``lines``, ``head``, ``tail``, ``thinned`` and ``problem`` are right after that.

    ``hits``: of one file, ascending, in lists; ``pass_by`` hears up to where no more are wanted. ``read``: (size,
    offset) → bytes. ``shapes``: of `shapes_of`. ``lines``: up to the last one of interest, since what nobody reads is
    not counted either. Never raises: what went wrong is in ``problem``.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        hits: Iterable[list[Hit]],
        rows: Rows,
        shapes: Shapes,
        pass_by: Callable[[int], None] = lambda offset: None,
    ) -> None:
        self.bytes = size
        self.lines = 0
        self.head = Piece(0, b"")
        self.tail = Piece(0, b"")
        self.problem: str | None = None
        self._read, self._hits, self._rows, self._shapes, self._pass_by = read, hits, rows, shapes, pass_by
        self._thin = Thin(rows.thin, _ALIKE)
        self._window = Piece(0, b"")
        self._end = 0  # up to here lines have been taken

    @property
    def thinned(self) -> dict[int, int]:
        """Number of a row → lines that were left out."""
        return self._thin.left_out

    def __iter__(self) -> Iterator[Candidate]:
        try:
            self.head = Piece(0, self._read(HEAD, 0))
            start = max(0, self.bytes - TAIL)
            self.tail = Piece(start, self._read(TAIL, start))
            for hits in self._places():
                yield from self._candidates(hits)
                self._pass_by(self._end)
        except OSError as error:
            self.problem = f"can't be read to its end: {error}"[:200]

    # ---- places

    def _places(self) -> Iterator[list[Hit]]:
        """The hits and the anchors at both ends, ascending."""
        early, late = self._early(), []
        last = (0, 1)
        for hits in self._hits:
            if hits[-1][0] >= self.tail.offset:
                cut = bisect_left(hits, (self.tail.offset, 0))
                late += hits[cut:]
                hits = hits[:cut]
            if not hits:
                continue
            last = hits[-1]
            if early and early[0] <= last:
                cut = bisect_left(early, last)
                hits = sorted(hits + early[:cut])
                early = early[cut:]
            yield hits
        yield early
        yield self._late(max([last, *early]), late)

    def _early(self) -> list[Hit]:
        """Those in front of the tail."""
        raw, number, before = self.head.raw, 1, 0
        found = []
        for at in self._shapes.ends(raw, 0):
            number += raw.count(b"\n", before, at)
            before = at
            found.append((at, number))
        return found[: bisect_left(found, (self.tail.offset, 0))]

    def _late(self, last: Hit, late: list[Hit]) -> list[Hit]:
        """In the tail. Newlines are counted from place to place, where the hits do not know the number."""
        start, raw = self.tail.offset, self.tail.raw
        places = self._at_the_end()
        if not places:
            return late
        numbers = dict(late)
        near, number = late[0] if late else (start, last[1] + self._newlines(last[0], start))
        found = []
        for at in sorted(places.union(numbers)):
            here = numbers.get(at)
            if here is None:
                low, high = sorted((at - start, near - start))
                here = number + raw.count(b"\n", low, high) * (1 if at >= near else -1)
            near, number = at, here
            found.append((at, here))
        return found

    def _at_the_end(self) -> set[int]:
        start, raw = self.tail.offset, self.tail.raw
        places = {start + at for at in self._shapes.ends(raw, len(raw) - _ENDS)}
        if start < len(self.head.raw):  # one file, both its ends
            places.update(self._shapes.ends(self.head.raw, start))
        for anchor in self._rows.tails:
            places.update(start + at for at in _last_of(raw, anchor))
        return places

    def _newlines(self, start: int, end: int) -> int:
        count = 0
        while start < end:
            block = self._read(min(_COUNT, end - start), start)
            if not block:
                break
            count += block.count(b"\n")
            start += len(block)
        return count

    # ---- lines

    def _candidates(self, hits: Iterable[Hit]) -> Iterator[Candidate]:
        window, low, high = self._window, 0, 0
        for at, number in hits:
            if at < self._end:
                continue
            if not low <= at < high:
                window = self._around(at)
                low, high = self._inside(window)
            end = self._thin.repeated(window.raw, at - window.offset)
            if end >= 0:  # most hits of NCCL's INFO
                self._end = window.offset + end
                continue
            start, raw, self._end = self._line_in(window, at)
            if self._thin.leaves_out(raw):
                continue
            rows, follow = self._shapes.held(raw)
            if rows:
                yield Candidate(number, start, text_of(raw), rows)
            if follow:
                number = yield from self._below(number, follow)
            self.lines = number

    def _inside(self, window: Piece) -> tuple[int, int]:
        """Offsets around which `_around` has nothing better than ``window``."""
        end = window.offset + len(window.raw)
        low = window.offset + LINE_LIMIT if window.offset else 0
        return low, end if end == self.bytes else end - LINE_LIMIT

    def _line(self, at: int) -> tuple[int, bytes, int]:
        """(start, text, end) of the line that holds ``at``; of a long one what stands around it."""
        return self._line_in(self._around(at), at)

    def _line_in(self, window: Piece, at: int) -> tuple[int, bytes, int]:
        raw, here = window.raw, at - window.offset
        start, end = raw.rfind(b"\n", 0, here) + 1, raw.find(b"\n", here)
        line = raw[start:end]
        if start and 0 <= end - start <= LINE_LIMIT and b"\r" not in line:  # nearly always
            return window.offset + start, line, window.offset + end
        return self._unusual(window, here)

    def _unusual(self, window: Piece, here: int) -> tuple[int, bytes, int]:
        """Carriage returns, long lines, the file's first and last."""
        raw = window.raw
        start = max(raw.rfind(b"\n", 0, here), raw.rfind(b"\r", 0, here)) + 1
        if (start == 0 and window.offset) or here - start > LINE_LIMIT:
            start = max(0, here - LINE_LIMIT // 8)
        end = _end(raw, here)
        if end is not None:
            return window.offset + start, raw[start : min(end, start + LINE_LIMIT)], window.offset + end
        far = max(window.offset + here, window.offset + len(raw))
        return window.offset + start, raw[start : start + LINE_LIMIT], self._end_after(far)

    def _around(self, at: int) -> Piece:
        """Bytes from `LINE_LIMIT` before ``at`` (or the file's start) to as many after it (or the file's end)."""
        for piece in (self._window, self.tail):
            here, size = at - piece.offset, len(piece.raw)
            if here < 0 or (here < LINE_LIMIT and piece.offset):
                continue
            if here + LINE_LIMIT <= size or piece.offset + size == self.bytes:
                return piece
        start = max(0, at - LINE_LIMIT)
        self._window = Piece(start, self._read(_WINDOW, start))
        return self._window

    def _end_after(self, at: int) -> int:
        while at < self.bytes:
            block = self._read(_COUNT, at)
            if not block:
                break
            end = _end(block, 0)
            if end is not None:
                return at + end
            at += len(block)
        return at

    def _below(self, number: int, count: int) -> Generator[Candidate, None, int]:
        """Returns the number of the last line."""
        while count and self._end < self.bytes:
            ending = self._around(self._end)
            number += ending.raw[self._end - ending.offset : self._end - ending.offset + 1] == b"\n"
            start = self._end + 1
            if start >= self.bytes:
                break
            _, raw, self._end = self._line(start)
            rows, follow = self._shapes.held(raw)
            count = max(count - 1, follow)
            if raw:
                yield Candidate(number, start, text_of(raw), rows)
        return number


def _end(raw: bytes, at: int) -> int | None:
    newline = raw.find(b"\n", at)
    carriage = raw.find(b"\r", at, len(raw) if newline < 0 else newline)
    end = newline if carriage < 0 else carriage
    return None if end < 0 else end


def _last_of(raw: bytes, anchor: bytes) -> Iterator[int]:
    """The first place in each of the last lines that have one."""
    at = raw.rfind(anchor)
    for _ in range(_LAST):
        if at < 0:
            return
        yield at
        at = raw.rfind(anchor, 0, raw.rfind(b"\n", 0, at) + 1)
