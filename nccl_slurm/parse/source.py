"""Files to read: what a source is, and the sources under a folder."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import BinaryIO, Callable, Iterator, NamedTuple

from nccl_slurm.model import Gap

__all__ = ["Source", "is_regular", "walk"]

FILES_LIMIT = 20_000
_DEPTH = 32


class Source(NamedTuple):
    """One file to read. ``host``: of the node it was read on. ``trust``: ``root`` for a kernel log, else ``job``."""

    name: str  # as shown in facts: relative path
    open: Callable[[], BinaryIO]  # called once; the reader closes it
    size: int
    mtime: float
    host: str | None
    trust: str


def walk(path: str) -> tuple[list[Source], list[Gap]]:
    """The regular files under a folder, sorted by name, or the one file. Symlinks are not followed. Never raises."""
    gaps: list[Gap] = []
    try:
        path = os.path.realpath(path)
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return [], [Gap(_shown(path), _reason(error))]
    if not stat.S_ISDIR(status.st_mode):
        files: Iterator[tuple[str, str]] = iter([(os.path.basename(path), path)])
    else:
        files = _under(path, "", gaps, 0)
    sources: list[Source] = []
    for name, full in files:
        if len(sources) >= FILES_LIMIT:
            gaps.append(Gap(_shown(path), f"more than {FILES_LIMIT} files; the rest is not read"))
            break
        source = _source(name, full, gaps)
        if source is not None:
            sources.append(source)
    return sources, gaps


def _under(folder: str, name: str, gaps: list[Gap], depth: int) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        gaps.append(Gap(_shown(name or folder), _reason(error)))
        return
    hidden = [entry.name for entry in entries if entry.name.startswith(".")]
    if hidden:
        more = f" and {len(hidden) - 3} more" if len(hidden) > 3 else ""
        gaps.append(Gap(_shown(name or folder), f"hidden, not read: {_shown(', '.join(hidden[:3]))}{more}"))
    for entry in entries:
        if entry.name.startswith("."):
            continue
        below = f"{name}/{entry.name}" if name else entry.name
        if not entry.is_dir(follow_symlinks=False):
            yield below, entry.path
        elif depth < _DEPTH:
            yield from _under(entry.path, below, gaps, depth + 1)
        else:
            gaps.append(Gap(_shown(below), "too deep, not read"))


def _source(name: str, path: str, gaps: list[Gap]) -> Source | None:
    try:
        status = os.lstat(path)
    except OSError as error:
        gaps.append(Gap(_shown(name), _reason(error)))
        return None
    if not stat.S_ISREG(status.st_mode):
        gaps.append(Gap(_shown(name), "no regular file, not read"))
        return None
    return Source(_shown(name), partial(_open, path), status.st_size, status.st_mtime, None, "job")


def _open(path: str) -> BinaryIO:
    """No symlink, no wait on a pipe, even if the file was exchanged since it was listed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    why = "no regular file" if not stat.S_ISREG(status.st_mode) else _foreign(path, status)
    if why:
        os.close(descriptor)
        raise OSError(why)
    return os.fdopen(descriptor, "rb")


def _foreign(path: str, status: os.stat_result) -> str:
    """Why root does not read it: whoever owns a folder may have linked a file there that he can't read himself."""
    if os.geteuid() != 0 or status.st_nlink < 2:
        return ""
    return "" if os.stat(os.path.dirname(path)).st_uid == status.st_uid else "a hard link to another user's file"


def is_regular(file: BinaryIO) -> bool:
    """Whether it has the descriptor of a regular file, which a program may read; bytes in memory have none."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError, ValueError):
        return False


def _shown(name: str) -> str:
    """File names are bytes; what is not UTF-8 in them is replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
