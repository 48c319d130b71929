"""Chooses the lines of a log file that some pattern row may match, without reading it line by line.

A loop over lines costs 0.2 µs a byte in Python, a regex over the text more; `bytes.find` of each anchor over blocks of
1 MiB costs a tenth of that (and not mmap.find, which is slow before 3.11). Memory does not depend on the file's size
nor on the length of its lines. A carriage return ends a line too (progress bars), but only newlines are counted.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping, NamedTuple, Set, Tuple

from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.shapes import Thin

__all__ = ["FOLLOW_INSIDE", "Candidate", "Piece", "Scan", "last_lines_of", "lines_of", "raw_lines_of", "text_of"]

BLOCK = 1 << 20
#: A line longer than this is shown from shortly before its first hit on.
LINE_LIMIT = 8192
HEAD, TAIL = 16 << 10, 64 << 10
#: Decompressed bytes that are read at most: a few hundred kB of gzip can hold gigabytes.
UNPACKED_LIMIT = 4 << 30
#: Lines that are read after the first line of a traceback, of all ranks that write to the file.
FOLLOW = {b"Traceback (most recent call last)": 300}
#: The same where only `Rows.literals` are looked for: tables of failed workers too, what a C++ exception says of itself
#: (``what():``), NCCL's last warning as torch quotes it.
FOLLOW_INSIDE = {**FOLLOW, b"ChildFailedError": 300, b"terminate called after": 8, b"Last error:": 3}
_LAST_OF_BLOCK = 32
#: Of lines that are alike (`patterns.Row.thin`) so many are read: as many channels as NCCL has to one peer, and twice
#: as many as are kept of one process (`repeat.Kept`).
_ALIKE = 32
_LZMA_MEMORY = 256 << 20


class Candidate(NamedTuple):
    """``number`` is 1-based; ``offset`` counts bytes (after decompression) up to the first byte of ``text``.

    ``rows``: numbers of the rows whose anchor the line contains, ascending; empty for lines that only follow a hit.
    """

    number: int
    offset: int
    text: str
    rows: tuple[int, ...]


class Piece(NamedTuple):
    offset: int
    raw: bytes


#: Start of a line → its end, its first hit, the rows to try.
_Found = Dict[int, Tuple[int, int, Set[int]]]


class Scan:
    """Iterate once for the candidates; ``bytes``, ``lines``, ``head``, ``tail`` and ``problem`` are right after that.

    ``first`` are bytes that the caller has read already; at most ``size`` bytes are read in all (a file that grows
    while it is read ends there). ``log``: it is the log of ranks, so that between its two ends nothing but
    `Rows.literals` is looked for, as in large files that are not packed (`sift`), which is much faster. Never raises:
    what went wrong is in ``problem``.
    """

    def __init__(
        self, file: BinaryIO, rows: Rows, *, first: bytes = b"", size: int | None = None, log: bool = False
    ) -> None:
        self.bytes = 0
        self.lines = 0
        self.head = Piece(0, b"")
        self.tail = Piece(0, b"")
        self.problem: str | None = None
        self._rows = rows
        self._thin = Thin(rows.thin, _ALIKE)
        self._chunks = _chunks(file, first, size)
        self._log = log
        self._follow = 0

    @property
    def thinned(self) -> dict[int, int]:
        """Number of a row → lines that were left out."""
        return self._thin.left_out

    def __iter__(self) -> Iterator[Candidate]:
        waiting: list[Piece] = []
        for block in self._blocks():
            waiting.append(block)
            while sum(len(one.raw) for one in waiting[1:]) >= TAIL:
                first = waiting.pop(0)
                yield from self._block(first, inside=first.offset >= HEAD)
        for one in waiting:
            yield from self._block(one, inside=False)
        if self.tail.raw and not self.tail.raw.endswith(b"\n"):
            self.lines += 1

    def _blocks(self) -> Iterator[Piece]:
        """Whole lines, of about `BLOCK` bytes or of what a packed file gives at a time."""
        left = b""
        try:
            for chunk in self._chunks:
                self._remember(chunk)
                left += chunk
                cut = max(left.rfind(b"\n"), left.rfind(b"\r")) + 1
                if cut == 0 and len(left) < 2 * BLOCK:
                    continue
                cut = cut or len(left)
                yield Piece(self.bytes - len(left), left[:cut])
                left = left[cut:]
        except _FAILURES as error:
            self.problem = f"can't be read to its end: {str(error) or type(error).__name__}"[:200]
        yield Piece(self.bytes - len(left), left)

    def _remember(self, chunk: bytes) -> None:
        if not self.bytes:
            self.head = Piece(0, chunk[:HEAD])
        self.bytes += len(chunk)
        raw = (self.tail.raw + chunk)[-TAIL:] if len(chunk) < TAIL else chunk[-TAIL:]
        self.tail = Piece(self.bytes - len(raw), raw)

    def _block(self, piece: Piece, *, inside: bool) -> Iterator[Candidate]:
        offset, block = piece
        number, at = self.lines + 1, 0
        found = self._found_inside(block) if inside and self._log else self._found_and_below(block)
        for start, (end, hit, rows) in sorted(found.items()):
            if rows and (self._thin.repeats(block, hit, end) or self._thin.leaves_out(block[start:end])):
                continue
            number += block.count(b"\n", at, start)
            at = start
            if end - start > LINE_LIMIT:
                start = max(start, hit - LINE_LIMIT // 8)
                end = min(end, start + LINE_LIMIT)
            yield Candidate(number, offset + start, text_of(block[start:end]), tuple(sorted(rows)))
        self.lines += block.count(b"\n")

    def _found(self, block: bytes) -> _Found:
        found: _Found = {}
        for anchor, numbers in self._rows.anchors.items():
            if anchor not in block:  # most are not: half the time of small files
                continue
            walk = _last if anchor in self._rows.tails else _all
            for start, end, hit in walk(block, anchor):
                found.setdefault(start, (end, hit, set()))[2].update(numbers)
        return found

    def _found_inside(self, block: bytes) -> _Found:
        """The anchors of the lines that hold a literal or stand below one that `FOLLOW_INSIDE` has: mostly they are a
        small part of the block."""
        below: _Found = {}
        self._add_below(block, FOLLOW_INSIDE, below)
        lines = {start: end for one in self._rows.literals for start, end, _ in _all(block, one)}
        lines.update((start, end) for start, (end, _, _) in below.items())
        starts = sorted(lines)
        if sum(lines.values()) - sum(starts) > len(block) // 2:
            return {**below, **self._found(block)}
        places, at = [], 0
        for start in starts:
            places.append(at)
            at += lines[start] - start + 1
        part = self._found(b"\n".join([block[start : lines[start]] for start in starts]))
        whence = {place: start - place for place, start in zip(places, starts)}
        there = {at + whence[at]: (end + whence[at], hit + whence[at], rows) for at, (end, hit, rows) in part.items()}
        return {**below, **there}

    def _found_and_below(self, block: bytes) -> _Found:
        found = self._found(block)
        self._add_below(block, FOLLOW, found)
        return found

    def _add_below(self, block: bytes, follow: Mapping[bytes, int], found: _Found) -> None:
        """The lines below those of ``follow``, without rows where there are none of them yet."""
        followed: list[tuple[int, int]] = [(0, self._follow)] if self._follow else []
        for anchor, count in follow.items():
            followed += [(end, count) for _, end, _ in _all(block, anchor)]
        self._follow = 0
        for start, count in followed:
            self._follow = max(self._follow, _after(block, start, count, found))


def lines_of(piece: Piece, count: int) -> list[str]:
    """The first ``count`` lines of a head."""
    lines = piece.raw.replace(b"\r", b"\n").split(b"\n", count)
    return [text_of(raw[:LINE_LIMIT]) for raw in lines[:count]]


def last_lines_of(piece: Piece) -> Iterator[str]:
    """The lines of a tail, the last one first; without its first line if that may be cut."""
    return map(text_of, raw_lines_of(piece))


def raw_lines_of(piece: Piece) -> Iterator[bytes]:
    """As `last_lines_of`."""
    text = piece.raw.replace(b"\r", b"\n")
    end = len(text)
    while end >= 0:
        start = text.rfind(b"\n", 0, end) + 1
        if start > 0 or piece.offset == 0:
            yield text[start : min(end, start + LINE_LIMIT)]
        end = start - 1


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\x00", "\ufffd")


def _all(block: bytes, anchor: bytes) -> Iterator[tuple[int, int, int]]:
    at = block.find(anchor)
    while at >= 0:
        start, end = _bounds(block, at)
        yield start, end, at
        at = block.find(anchor, end)


def _last(block: bytes, anchor: bytes) -> Iterator[tuple[int, int, int]]:
    at = block.rfind(anchor)
    for _ in range(_LAST_OF_BLOCK):
        if at < 0:
            return
        start, end = _bounds(block, at)
        yield start, end, at
        at = block.rfind(anchor, 0, start)


def _bounds(block: bytes, at: int) -> tuple[int, int]:
    start = block.rfind(b"\n", 0, at) + 1
    start = max(start, block.rfind(b"\r", start, at) + 1)
    return start, _end(block, at)


def _end(block: bytes, at: int) -> int:
    end = block.find(b"\n", at)
    end = len(block) if end < 0 else end
    carriage = block.find(b"\r", at, end)
    return end if carriage < 0 else carriage


def _after(block: bytes, at: int, count: int, found: _Found) -> int:
    """Adds the ``count`` lines after ``at``; returns how many are still to come in the next block."""
    while count and at < len(block):
        start = at + 1 if block[at : at + 1] in (b"\n", b"\r") else at
        if start >= len(block):
            break
        at = _end(block, start)
        if at > start:
            found.setdefault(start, (at, start, set()))
        count -= 1
    return count


# ---- reading, packed or plain

_FAILURES = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, MemoryError)
_MAGIC: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=47)),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)),
)
_ZSTD = b"\x28\xb5\x2f\xfd"


def _chunks(file: BinaryIO, first: bytes, size: int | None) -> Iterator[bytes]:
    raw = _raw(file, first, size)
    start = next(raw, b"")
    if start.startswith(_ZSTD):
        raise ValueError("zstd is not read here; unpack it first")
    for magic, make in _MAGIC:
        if start.startswith(magic):
            yield from _unpacked(start, raw, make)
            return
    if start:
        yield start
        yield from raw


def _raw(file: BinaryIO, first: bytes, size: int | None) -> Iterator[bytes]:
    left = size if size is not None else 1 << 62
    chunk = first[:left] or file.read(min(BLOCK, left))
    while chunk:
        yield chunk
        left -= len(chunk)
        chunk = file.read(min(BLOCK, left)) if left > 0 else b""


def _unpacked(start: bytes, raw: Iterator[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """Blocks of at most 1 MiB; members that follow one another (log rotation appends) are one text."""
    codec, data, total = make(), start, 0
    while True:
        out = codec.decompress(data, BLOCK)
        total += len(out)
        if out:
            yield out
        if total > UNPACKED_LIMIT:
            raise ValueError("more than 4 GiB when unpacked")
        if codec.eof:
            data = codec.unused_data or next(raw, b"")
            if not data.rstrip(b"\x00"):
                return
            codec = make()
        else:
            data = _more(codec, raw, bool(out))


def _more(codec: Any, raw: Iterator[bytes], flowing: bool) -> bytes:
    """The next input: what zlib hands back, nothing while bz2 and lzma still hold some, else the next bytes read."""
    tail: bytes = getattr(codec, "unconsumed_tail", b"")
    if tail or not getattr(codec, "needs_input", True):
        return tail
    chunk = next(raw, None)
    if chunk is None and not flowing:
        raise EOFError("packed file is cut off")
    return chunk or b""
