"""Files of a job's user, opened so that their owner can't make root read anything else.

The folder is the user's: any name in it may be a symbolic link, a FIFO, a socket, a hard link to somebody's secret, or
change between two looks. So folders are walked by descriptor, one component at a time, links never followed, nothing
ever blocks, and a file counts only if the descriptor shows a regular file of the expected owner. All of that in a
process that has given root away (see userread).
"""

from __future__ import annotations

import io
import os
import stat
from typing import Any, BinaryIO, Callable, NamedTuple, Sequence

from nccl_slurm.model import Gap

__all__ = ["Found", "Limits", "Refused", "find", "opened", "readable_name"]

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_HOLE_BYTES = 1 << 26


class Refused(Exception):
    """Why a file is not read; ``str()`` is the gap's text."""


class Limits(NamedTuple):
    """Beyond these, files are left out or cut, each with a gap. Bytes."""

    files: int = 2000
    depth: int = 6  # elastic/<run>/attempt_<n>/<local rank>/error.json is four folders deep
    file_bytes: int = 1 << 31
    total_bytes: int = 1 << 32


class Found(NamedTuple):
    """One readable file. ``open`` looks at everything again: the folder may have changed."""

    name: str
    size: int
    mtime: float
    open: Callable[[], BinaryIO]
    limit: int  # bytes that will be read at most


def find(path: str, owner: int, gaps: list[Gap], limits: Limits = Limits()) -> list[Found]:  # noqa: B008 # immutable
    """The regular files of ``owner`` at ``path``: the file itself, or all under the folder, in the order of names."""
    found = _Finder(owner, gaps, limits)
    try:
        found.look(path, (), readable_name(path))
    except (OSError, Refused) as error:
        gaps.append(Gap(readable_name(path)[:200], _reason(error)))
    found.report()
    return found.files


class _Finder:
    def __init__(self, owner: int, gaps: list[Gap], limits: Limits) -> None:
        self.files: list[Found] = []
        self._owner, self._gaps, self._limits = owner, gaps, limits
        self._left, self._left_out = limits.total_bytes, 0

    def look(self, base: str, parts: Sequence[str], name: str) -> None:
        descriptor = _walk(base, parts)
        try:
            info = os.fstat(descriptor)
            if stat.S_ISDIR(info.st_mode):
                self._folder(descriptor, base, parts)
                return
        finally:
            os.close(descriptor)
        _check(info, self._owner)
        _check_holes(info)
        limit = min(info.st_size, self._limits.file_bytes, self._left)
        if limit < info.st_size:
            self._gaps.append(Gap(name[:200], f"{info.st_size} bytes; only the first {limit} are read"))
        self._left -= limit
        room = limit if limit < info.st_size else min(self._limits.file_bytes, limit + (1 << 20))
        self.files.append(
            Found(name, info.st_size, info.st_mtime, lambda: opened(base, parts, self._owner, room), room)
        )

    def _folder(self, descriptor: int, base: str, parts: Sequence[str]) -> None:
        for entry in sorted(os.listdir(descriptor)):
            name = "/".join(readable_name(part) for part in (*parts, entry))
            if len(self.files) >= self._limits.files or len(parts) >= self._limits.depth:
                self._left_out += 1
                continue
            try:
                self.look(base, (*parts, entry), name)
            except (OSError, Refused) as error:
                if len(self._gaps) < 200:
                    self._gaps.append(Gap(name[:200], _reason(error)))

    def report(self) -> None:
        if self._left_out:
            most = f"at most {self._limits.files} files and {self._limits.depth} folders deep are read"
            self._gaps.append(Gap("user files", f"{self._left_out} names left out: {most}"))


def opened(base: str, parts: Sequence[str], owner: int, limit: int) -> BinaryIO:
    """The file, checked on its descriptor, giving ``limit`` bytes at most. Raises OSError, Refused."""
    descriptor = _walk(base, parts)
    try:
        _check(os.fstat(descriptor), owner)
    except Refused:
        os.close(descriptor)
        raise
    return io.BufferedReader(_Capped(os.fdopen(descriptor, "rb", buffering=0), limit), 1 << 18)


def _walk(base: str, parts: Sequence[str]) -> int:
    """``base`` is given by root or Slurm: only its last component must not be a link. Below it none may be."""
    descriptor = os.open(base, _FLAGS)
    for part in parts:
        try:
            following = os.open(part, _FLAGS, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor


def _check(info: os.stat_result, owner: int) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise Refused("not a regular file")
    if info.st_uid != owner:
        raise Refused(f"owned by uid {info.st_uid}, not by the job's user")


def _check_holes(info: os.stat_result) -> None:
    """Ten terabytes of holes cost their user nothing, and the reader minutes. Compressing file systems tell fewer
    blocks than bytes too, but not a thousand times fewer."""
    if info.st_size > _HOLE_BYTES and info.st_blocks * 512 * 1000 < info.st_size:
        raise Refused("nearly all of it is a hole")


class _Capped(io.RawIOBase):
    """A growing file must end for us."""

    def __init__(self, raw: Any, limit: int) -> None:
        super().__init__()
        self._raw, self._left = raw, limit

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        size = self._raw.readinto(view) or 0 if len(view) else 0
        self._left -= size
        return size

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def readable_name(path: str) -> str:
    """File names are bytes; those that are no UTF-8 show as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        links = error.errno in (40, 20)  # ELOOP, ENOTDIR: O_NOFOLLOW met a link
        return f"{error.strerror or error}{': a link is not followed' if links else ''}"
    return str(error)
