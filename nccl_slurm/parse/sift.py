"""The candidates of a large file, from the places where a search found literals.

As `scan.Scan` for the reader, but the text between the places is never looked at: first the lines at the places, then
every anchor of the rows in those lines. At both ends of the file the anchors are looked for that hold no literal.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import chain
from typing import Callable, Iterable, Iterator, NamedTuple

from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.scan import FOLLOW, HEAD, LINE_LIMIT, TAIL, Candidate, Piece, text_of
from nccl_slurm.parse.search import Hit

__all__ = ["WHOLE", "Sift", "is_special"]

#: Files up to this size are read whole.
WHOLE = 128 << 10
#: Of lines that are alike (`patterns.Row.thin`) so many are read.
THIN = 2
_THIN_KEYS = 20_000
_WINDOW = 64 << 10
_COUNT = 1 << 20
_BATCH = 128 << 10
#: Of the tail, what is searched for `Rows.ends`.
_ENDS = 32 << 10
_LAST = 32
_DIGITS = b"0123456789"
_NUMBER = _DIGITS + b"/"
#: Lines below that are read whatever they say: tracebacks, tables of failed workers, what a C++ exception says of
#: itself (``what():``), NCCL's last warning as torch quotes it.
_FOLLOW = {**FOLLOW, b"ChildFailedError": 300, b"terminate called after": 8, b"Last error:": 3}
#: A kernel log (as dmesg, its -r, -x, -d, -e or -T, syslog or journald's JSON have it) or an answer of NCCL's RAS: not
#: the lines of a rank, so the literals are not made for them.
_SPECIAL = re.compile(
    rb"(?m)^(?:<\d{1,3}>|kern {0,4}:\w{1,8} {0,8}: )?\[ {0,12}\+?\d{1,10}\.\d{6}\]"
    rb"|^\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\] |^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    rb"| kernel: |\"(?:_TRANSPORT|SYSLOG_IDENTIFIER)\" ?: ?\"kernel\"|^Job summary\r?$|^Communicators\.\.\."
    rb"|^#\d{1,6}-\d{1,6} \([0-9a-f]{8,16}\) "
)


def is_special(first: bytes) -> bool:
    """Whether a file that begins so has to be read whole, whatever its size."""
    return _SPECIAL.search(first) is not None


class _Line(NamedTuple):
    number: int
    offset: int
    raw: bytes
    follows: bool  # read whatever it says


class Sift:
    """Iterate once; ``bytes``, ``lines``, ``head``, ``tail``, ``thinned`` and ``problem`` are right after that.

    ``hits``: of one file, ascending. ``read``: (size, offset) → bytes. Never raises: what went wrong is in ``problem``.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, hits: Iterable[Hit], rows: Rows) -> None:
        self.bytes = size
        self.lines = 0
        self.head = Piece(0, b"")
        self.tail = Piece(0, b"")
        self.problem: str | None = None
        self.thinned: dict[int, int] = {}  # number of a row → lines that were left out
        self._read, self._hits, self._rows = read, hits, rows
        self._window = Piece(0, b"")
        self._end = 0  # up to here lines have been taken
        self._seen: dict[tuple[bytes, bytes, bytes], int] = {}

    def __iter__(self) -> Iterator[Candidate]:
        try:
            self.head = Piece(0, self._read(HEAD, 0))
            start = max(0, self.bytes - TAIL)
            self.tail = Piece(start, self._read(TAIL, start))
            batch: list[_Line] = []
            size = 0
            for line in self._lines(self._places()):
                batch.append(line)
                size += len(line.raw)
                if size > _BATCH:
                    yield from self._matched(batch)
                    batch, size = [], 0
            yield from self._matched(batch)
        except OSError as error:
            self.problem = f"can't be read to its end: {error}"[:200]

    # ---- places

    def _places(self) -> Iterator[Hit]:
        """The hits and the anchors at both ends, ascending. Counts the file's lines as far as nobody has."""
        hits = iter(self._hits)
        last = Hit(1, 0)
        late: list[Hit] = []
        early = iter(self._early())
        edge = next(early, None)
        for hit in hits:
            while edge is not None and edge.offset <= hit.offset:
                yield edge
                edge = next(early, None)
            if hit.offset >= self.tail.offset:
                late = [hit, *hits]
                break
            last = hit
            yield hit
        yield from (one for one in (edge, *early) if one is not None)
        yield from self._at_the_end(last, late)

    def _early(self) -> list[Hit]:
        """Those in front of the tail."""
        raw, places = self.head.raw, sorted(_found(self.head.raw, self._rows.ends, 0))
        return [Hit(1 + raw.count(b"\n", 0, at), at) for at in places if at < self.tail.offset]

    def _at_the_end(self, last: Hit, late: list[Hit]) -> Iterator[Hit]:
        start, raw = self.tail.offset, self.tail.raw
        if late:
            number = late[0].number - raw.count(b"\n", 0, late[0].offset - start)
        else:
            number = last.number + self._newlines(last.offset, start)
        self.lines = number + raw.count(b"\n") - (1 if raw.endswith(b"\n") else 0)
        places = {start + at for at in _found(raw, self._rows.ends, len(raw) - _ENDS)}
        places.update(at for at in _found(self.head.raw, self._rows.ends, 0) if at >= start)  # one file, both its ends
        for anchor in self._rows.tails:
            places.update(start + at for at in _last_of(raw, anchor))
        places.update(hit.offset for hit in late)
        at = 0
        for place in sorted(places):
            number += raw.count(b"\n", at, place - start)
            at = place - start
            yield Hit(number, place)

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

    def _lines(self, places: Iterable[Hit]) -> Iterator[_Line]:
        for hit in places:
            if hit.offset < self._end:
                continue
            start, raw, self._end = self._line(hit.offset)
            line = _Line(hit.number, start, raw, False)
            if self._is_one_of_many(line):
                continue
            yield line
            count = _following(raw)
            if count:
                yield from self._below(line, count)

    def _line(self, at: int) -> tuple[int, bytes, int]:
        """(start, text, end) of the line that holds ``at``; of a long one what stands around it."""
        window = self._around(at)
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

    def _below(self, line: _Line, count: int) -> Iterator[_Line]:
        number = line.number
        while count and self._end < self.bytes:
            ending = self._around(self._end)
            number += ending.raw[self._end - ending.offset : self._end - ending.offset + 1] == b"\n"
            start = self._end + 1
            if start >= self.bytes:
                return
            _, raw, self._end = self._line(start)
            count = max(count - 1, _following(raw))
            if raw:
                yield _Line(number, start, raw, True)

    def _is_one_of_many(self, line: _Line) -> bool:
        for anchor, (mark, row) in self._rows.thin.items():
            at = line.raw.find(anchor)
            if at < 0:
                continue
            what, found, rest = line.raw[at + len(anchor) :].partition(mark)
            if not found:
                continue
            key = line.raw[:at], what.lstrip(_NUMBER), rest.translate(None, _DIGITS)
            count = self._seen.get(key, 0)
            if count >= THIN:
                self.thinned[row] = self.thinned.get(row, 0) + 1
                return True
            if len(self._seen) < _THIN_KEYS:
                self._seen[key] = count + 1
        return False

    # ---- rows

    def _matched(self, lines: list[_Line]) -> Iterator[Candidate]:
        """The lines, all in one text, with the rows whose anchor they hold."""
        starts, at = [], 0
        for line in lines:
            starts.append(at)
            at += len(line.raw) + 1
        text = b"\n".join(line.raw for line in lines)
        rows: dict[int, set[int]] = {}
        for anchor, numbers in self._rows.anchors.items():
            at = text.find(anchor)
            while at >= 0:
                index = bisect_right(starts, at) - 1
                rows.setdefault(index, set()).update(numbers)
                at = text.find(anchor, starts[index] + len(lines[index].raw))
        for index, line in enumerate(lines):
            if index in rows or line.follows:
                yield Candidate(line.number, line.offset, text_of(line.raw), tuple(sorted(rows.get(index, ()))))


def _end(raw: bytes, at: int) -> int | None:
    newline = raw.find(b"\n", at)
    carriage = raw.find(b"\r", at, len(raw) if newline < 0 else newline)
    end = newline if carriage < 0 else carriage
    return None if end < 0 else end


def _following(raw: bytes) -> int:
    return max((count for anchor, count in _FOLLOW.items() if anchor in raw), default=0)


def _found(raw: bytes, anchors: Iterable[bytes], start: int) -> Iterator[int]:
    return chain.from_iterable(_all(raw, anchor, start) for anchor in anchors)


def _all(raw: bytes, anchor: bytes, start: int) -> Iterator[int]:
    at = raw.find(anchor, max(0, start))
    while at >= 0:
        yield at
        at = raw.find(anchor, at + len(anchor))


def _last_of(raw: bytes, anchor: bytes) -> Iterator[int]:
    """The first place in each of the last lines that have one."""
    at = raw.rfind(anchor)
    for _ in range(_LAST):
        if at < 0:
            return
        yield at
        at = raw.rfind(anchor, 0, raw.rfind(b"\n", 0, at) + 1)
