"""Chooses the lines of a log file that some pattern row may match, without reading it line by line.

A loop over lines costs 0.2 µs a byte in Python, a regex over the text more; `bytes.find` of each anchor over blocks of
1 MiB costs a tenth of that (and not mmap.find, which is slow before 3.11). Memory does not depend on the file's size
nor on the length of its lines. A carriage return ends a line too (progress bars), but only newlines are counted.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any, BinaryIO, Callable, Iterator, NamedTuple

from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.shapes import Thin

__all__ = ["Candidate", "Piece", "Scan", "last_lines_of", "lines_of", "raw_lines_of", "text_of"]

BLOCK = 1 << 20
#: A line longer than this is shown from shortly before its first hit on.
LINE_LIMIT = 8192
HEAD, TAIL = 16 << 10, 64 << 10
#: Decompressed bytes that are read at most: a few hundred kB of gzip can hold gigabytes.
UNPACKED_LIMIT = 4 << 30
#: Lines that are read after the first line of a traceback, of all ranks that write to the file.
FOLLOW = {b"Traceback (most recent call last)": 300}
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


class Scan:
    """Iterate once for the candidates; ``bytes``, ``lines``, ``head``, ``tail`` and ``problem`` are right after that.

    ``first`` are bytes that the caller has read already; at most ``size`` bytes are read in all (a file that grows
    while it is read ends there). Never raises: what went wrong is in ``problem``.
    """

    def __init__(self, file: BinaryIO, rows: Rows, *, first: bytes = b"", size: int | None = None) -> None:
        self.bytes = 0
        self.lines = 0
        self.head = Piece(0, b"")
        self.tail = Piece(0, b"")
        self.problem: str | None = None
        self._rows = rows
        self._thin = Thin(rows.thin, _ALIKE)
        self._chunks = _chunks(file, first, size)
        self._follow = 0

    @property
    def thinned(self) -> dict[int, int]:
        """Number of a row → lines that were left out."""
        return self._thin.left_out

    def __iter__(self) -> Iterator[Candidate]:
        left = b""
        try:
            for chunk in self._chunks:
                self._remember(chunk)
                left += chunk
                cut = max(left.rfind(b"\n"), left.rfind(b"\r")) + 1
                if cut == 0 and len(left) < 2 * BLOCK:
                    continue
                cut = cut or len(left)
                yield from self._block(left[:cut], self.bytes - len(left))
                left = left[cut:]
        except _FAILURES as error:
            self.problem = f"can't be read to its end: {str(error) or type(error).__name__}"[:200]
        yield from self._block(left, self.bytes - len(left))
        if self.tail.raw and not self.tail.raw.endswith(b"\n"):
            self.lines += 1

    def _remember(self, chunk: bytes) -> None:
        if not self.bytes:
            self.head = Piece(0, chunk[:HEAD])
        self.bytes += len(chunk)
        raw = (self.tail.raw + chunk)[-TAIL:] if len(chunk) < TAIL else chunk[-TAIL:]
        self.tail = Piece(self.bytes - len(raw), raw)

    def _block(self, block: bytes, offset: int) -> Iterator[Candidate]:
        number, at = self.lines + 1, 0
        for start, (end, hit, rows) in sorted(self._hits(block).items()):
            if rows and (self._thin.repeats(block, hit, end) or self._thin.leaves_out(block[start:end])):
                continue
            number += block.count(b"\n", at, start)
            at = start
            if end - start > LINE_LIMIT:
                start = max(start, hit - LINE_LIMIT // 8)
                end = min(end, start + LINE_LIMIT)
            yield Candidate(number, offset + start, text_of(block[start:end]), tuple(sorted(rows)))
        self.lines += block.count(b"\n")

    def _hits(self, block: bytes) -> dict[int, tuple[int, int, set[int]]]:
        """Start of a line → its end, its first hit, the rows to try."""
        found: dict[int, tuple[int, int, set[int]]] = {}
        followed: list[tuple[int, int]] = [(0, self._follow)] if self._follow else []
        for anchor, numbers in self._rows.anchors.items():
            if anchor not in block:  # most are not: half the time of small files
                continue
            walk = _last if anchor in self._rows.tails else _all
            for start, end, hit in walk(block, anchor):
                found.setdefault(start, (end, hit, set()))[2].update(numbers)
                if anchor in FOLLOW:
                    followed.append((end, FOLLOW[anchor]))
        self._follow = 0
        for start, count in followed:
            self._follow = max(self._follow, _after(block, start, count, found))
        return found


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


def _after(block: bytes, at: int, count: int, found: dict[int, tuple[int, int, set[int]]]) -> int:
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
