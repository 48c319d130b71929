"""Files that a person gives: output of nccl-tests, of now and of earlier."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from nccl_slurm.errors import InputError

__all__ = ["texts"]

_MOST = 10_000
#: The table of one run is some kilobytes; with NCCL_DEBUG=INFO before it megabytes.
_BYTES = 16 << 20


def texts(paths: Sequence[str], option: str) -> Mapping[str, str]:
    """Path → text; of a folder all files in it that are not hidden. Raises InputError with the option that named it."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            for file in _files(path):
                found[file] = _text(file)
        except OSError as error:
            raise InputError(f"{option} {path}: {error.strerror}") from None
        if len(found) > _MOST:
            raise InputError(f"{option} {path}: more than {_MOST} files")
    return found


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    yield from (file for file in (os.path.join(path, name) for name in names) if _holds_something(file))


def _holds_something(path: str) -> bool:
    """Files of /proc have no size, and some of them never end."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _text(path: str) -> str:
    """A pipe that nobody writes to is never waited for: only regular files."""
    if not os.path.isfile(path):
        raise FileNotFoundError(errno.ENOENT, "no such file, or no regular one")
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        return file.read(_BYTES)
