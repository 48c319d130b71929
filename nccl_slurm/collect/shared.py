"""The shared folder: node records arrive in ``new/``, forged or broken ones go to ``quarantine/``.

Whoever can write here decides what the daemon believes about machines, so each file is judged by its descriptor: a
regular file with one link, owned by a trusted user, small, of the right schema, and named after what it holds.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nccl_slurm import schema
from nccl_slurm.errors import InputError, RecordError

__all__ = ["MAX_RECORD_BYTES", "Inbox", "Incoming", "validate_record"]

MAX_RECORD_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"(?P<job>[0-9]{1,18})\.(?P<start>[0-9]{1,18})\.(?P<node>[A-Za-z0-9._-]{1,255})\.json")
#: What is not whole yet: the name that it will have, then its writer's pid and a stamp, or (`fetch`) its SHA-256.
_PART = re.compile(_NAME.pattern + r"\.(?:[0-9]{1,10}\.[0-9]{1,20}|[0-9a-f]{64})")
_MAX_QUARANTINED = 1000


@dataclass(frozen=True)
class Incoming:
    """One record as read. ``folder_time`` is the second of the run's folder on its node (prolog, else epilog)."""

    name: str
    record: dict[str, Any]
    sha256: str
    folder_time: int


class Inbox:
    """``shared`` is the folder of DESIGN's hand-over; ``uids`` are the owners whose records are believed."""

    def __init__(self, shared: str, uids: Sequence[int]) -> None:
        self._shared = shared
        self._uids = frozenset(uids)

    def pending(self) -> list[str]:
        """Names in ``new/``, oldest name first. Raises InputError where the folder is absent or others may write it."""
        folder = self._open_folder("new")
        try:
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # .nfs…: NFS's own
        finally:
            os.close(folder)

    def read(self, name: str) -> Incoming:
        """Raises RecordError with the reason; the file stays where it is."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise RecordError("name is not <job>.<seconds>.<node>.json")
        folder = self._open_folder("new")
        try:
            data = self._read_file(folder, name)
        finally:
            os.close(folder)
        record = validate_record(data)
        if record["job_id"] != int(match["job"]) or record["node"] != match["node"]:
            raise RecordError("name and content disagree on job or node")
        return Incoming(name, record, hashlib.sha256(data).hexdigest(), int(match["start"]))

    def done(self, name: str) -> None:
        folder = self._open_folder("new")
        try:
            _unlink(folder, name)
        finally:
            os.close(folder)

    def quarantine(self, name: str) -> None:
        """Moves the file away; a folder that overflows drops it instead (whoever floods it must not fill the disk)."""
        source, target = self._open_folder("new"), self._open_folder("quarantine")
        try:
            if len(os.listdir(target)) >= _MAX_QUARANTINED:
                _remove(source, name)
            else:
                os.rename(name, name[:200], src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(source)
            os.close(target)

    def remove_parts(self, before: float) -> int:
        """Removes from ``tmp/`` what writers that were killed left there, last written to before then. Returns how
        many; raises InputError where the folder is absent, OSError where it takes no change."""
        folder = self._open_folder("tmp")
        try:
            old = [name for name in os.listdir(folder) if _PART.fullmatch(name) and _is_old(folder, name, before)]
            for name in old:
                _unlink(folder, name)
            return len(old)
        finally:
            os.close(folder)

    def _open_folder(self, part: str) -> int:
        path = os.path.join(self._shared, part)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; create it (0700, owner root) and mount it here") from None
        info = os.fstat(folder)
        why = self._distrust(info)
        if why:
            os.close(folder)
            raise InputError(f"{path}: {why}")
        return folder

    def _distrust(self, info: os.stat_result) -> str:
        if info.st_uid not in self._uids | {os.geteuid()}:
            return f"belongs to uid {info.st_uid}; chown it to root, or add {info.st_uid} to daemon.record_uids"
        if info.st_mode & 0o022:
            return f"others may write here (mode {stat.S_IMODE(info.st_mode):04o}); chmod 0700"
        return ""

    def _read_file(self, folder: int, name: str) -> bytes:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise RecordError(f"cannot be opened: {error.strerror}") from None
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
                raise RecordError("not a regular file with one link")
            if info.st_uid not in self._uids:
                raise RecordError(f"owned by uid {info.st_uid}, which is not trusted")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_RECORD_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_RECORD_BYTES:
            raise RecordError("larger than 4 MiB")
        return data


def validate_record(data: bytes) -> dict[str, Any]:
    """The record as an object that fits node-record/1. Raises RecordError."""
    try:
        return schema.loads(data, "node-record/1")
    except ValueError as error:
        raise RecordError(str(error)) from None


def _is_old(folder: int, name: str, before: float) -> bool:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_mtime < before


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=folder)
