"""What kind of bytes a file holds: text, packed text, UTF-16, or none that is a log.

Offsets in facts count the bytes of the text as it is read: after unpacking, and as UTF-8.
"""

from __future__ import annotations

import bz2
import codecs
import importlib
import lzma
import re
import zlib
from typing import Any, BinaryIO, Callable, Iterator

from nccl_slurm.parse import zstd
from nccl_slurm.parse.source import is_regular

__all__ = ["Recoded", "binary", "head", "packed", "plain", "recoded", "unpacked"]

_ZSTD = b"\x28\xb5\x2f\xfd"
_LZMA_MEMORY = 256 << 20
_BLOCK = 1 << 20
#: As for gzip (see `scan`): a few hundred kB can hold gigabytes.
_LIMIT = 4 << 30
_FAILURES = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)

#: First bytes → what it is. Such files lie beside logs (core dumps, checkpoints, profiles) and can be very large.
_BINARY = (
    (b"\x7fELF", "a program or core dump (ELF)"),
    (b"PK\x03\x04", "an archive or checkpoint (zip)"),
    (b"\x93NUMPY", "an array (NumPy)"),
    (b"\x89HDF", "an array file (HDF5)"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"PAR1", "a table (Parquet)"),
    (b"SQLite format 3\x00", "a database (SQLite)"),
    (b"%PDF", "a document (PDF)"),
    (b"\xd4\xc3\xb2\xa1", "a network capture"),
    (b"\x0a\x0d\x0d\x0a", "a network capture"),
    (b"PERFILE2", "a profile (perf)"),
)
_TAR = slice(257, 262)
_LENGTH_AND_JSON = re.compile(rb"[\s\S]{8}\{\"__metadata__\"|[\s\S]{8}\{\"[\w.]{1,200}\":\{\"dtype\"")  # safetensors


def binary(first: bytes) -> str | None:
    """What a file that is no log is, or None. ``first``: its first 4,096 bytes, unpacked."""
    for magic, what in _BINARY:
        if first.startswith(magic):
            return what
    if first[_TAR] == b"ustar":
        return "an archive (tar)"
    if first[:1] == b"\x80" and first[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle that is no flight recorder dump"
    return "a checkpoint (safetensors)" if _LENGTH_AND_JSON.match(first) else None


# ---- packed files


def _zstd() -> Any:
    """A decompressor, or None: the standard library has one from Python 3.14 on."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name).ZstdDecompressor()
        except (ImportError, AttributeError):
            continue
    return None


_CODECS: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=47)),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)),
    (_ZSTD, _zstd),
)


def packed(first: bytes) -> bool:
    return any(first.startswith(magic) for magic, _ in _CODECS)


def head(first: bytes, limit: int = 4096) -> bytes:
    """The first bytes inside a packed file, as far as its first bytes tell them; of other files ``first`` itself."""
    codec = _codec(first)
    if not packed(first):
        return first
    try:
        return b"" if codec is None else bytes(codec.decompress(first, limit))
    except Exception:  # a broken file has no head; the reader that reads it whole says why
        return b""


def unpacked(raw: bytes, limit: int) -> bytes:
    """The whole of a packed file of one member. Raises ValueError: broken, cut off, or longer than ``limit`` bytes."""
    codec = _codec(raw)
    if codec is None:
        raise ValueError("zstd is not read by this Python; unpack it first")
    try:
        out = bytes(codec.decompress(raw, limit + 1))
    except _FAILURES as error:
        raise ValueError(f"can't be unpacked: {error}") from None
    if len(out) > limit:
        raise ValueError(f"larger than {limit >> 20} MiB when unpacked")
    if not codec.eof:
        raise ValueError("packed file is cut off")
    return out


def _codec(first: bytes) -> Any:
    return next((make() for magic, make in _CODECS if first.startswith(magic)), None)


# ---- text that is not UTF-8, or packed in a way that `scan` does not know


class Recoded:
    """A file that is read as the chunks that something made of it. Reading raises ValueError."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._total = chunks, 0

    def read(self, size: int = -1) -> bytes:
        """At least one byte unless the file has ended; ``size`` is a hint."""
        out = next((chunk for chunk in self._chunks if chunk), b"")
        self._total += len(out)
        if self._total > _LIMIT:
            raise ValueError("more than 4 GiB when unpacked")
        return out


def recoded(file: BinaryIO, first: bytes, size: int) -> Recoded | None:
    """The file as UTF-8, or None where its bytes can be read as they are. ``first`` is read already.

    ``size`` bounds the bytes that are read: a file that grows meanwhile ends there. Raises ValueError for zstd where
    neither this Python nor a program reads it.
    """
    if first.startswith(_ZSTD):
        return Recoded(_zstd_chunks(file, first, size))
    encoding = _utf16(first)
    return None if encoding is None else Recoded(_decoded(_raw(file, first, size), encoding))


def _zstd_chunks(file: BinaryIO, first: bytes, size: int) -> Iterator[bytes]:
    if _zstd() is not None:
        return _unzstd(_raw(file, first, size))
    path = zstd.program()
    if path is None or not is_regular(file):
        raise ValueError(
            "zstd is not read here (Python 3.14, backports.zstd or /usr/bin/zstd read it); unpack it first"
        )
    return zstd.unpacked(file, path)


def _raw(file: BinaryIO, first: bytes, size: int) -> Iterator[bytes]:
    chunk, left = first[:size], size
    while chunk:
        yield chunk
        left -= len(chunk)
        chunk = file.read(min(_BLOCK, left)) if left > 0 else b""


def _decoded(raw: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in raw:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _unzstd(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of 1 MiB at most; frame after frame, as rotated logs are appended to one another."""
    codec, data = _zstd(), next(raw, b"")
    while data or not codec.needs_input:
        try:
            yield codec.decompress(data, _BLOCK)
        except Exception as error:  # ZstdError is none of Python's own
            raise ValueError(f"can't be unpacked: {error}") from None
        data = b""
        if codec.eof:
            data = codec.unused_data or next(raw, b"")
            codec = _zstd() if data else codec
            if not data:
                return
        elif codec.needs_input:
            data = next(raw, b"")
    if not codec.eof:
        raise ValueError("packed file is cut off")


def plain(first: bytes) -> bool:
    """Whether bytes of the file are bytes of its text (ASCII at least)."""
    return not packed(first) and _utf16(first) is None


def _utf16(first: bytes) -> str | None:
    """By its mark, or by every second byte being zero (Windows tools and some launchers write no mark)."""
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") and first[2:4] != b"\x00\x00" and _even(first[2:]):
        return "utf-16"
    start = first[:64]
    if len(start) >= 16 and not any(start[1::2]) and all(start[0::2]):
        return "utf-16-le"
    if len(start) >= 16 and not any(start[0::2]) and all(start[1::2]):
        return "utf-16-be"
    return None


def _even(text: bytes) -> bool:
    """Whether this can be UTF-16: any language has line ends, blanks or digits with a zero byte beside."""
    return not text or b"\x00" in text[:256]
