"""A bundle on disk: one packed tar or one folder, for its owner alone, and the same bytes from the same parts."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress

from nccl_slurm.bundle.part import Part
from nccl_slurm.errors import InputError

__all__ = ["packed", "to_folder", "to_tar"]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REMEDY = "give -o a place that you may write to"


def packed(parts: Iterable[Part], folder: str, at: float) -> bytes:
    """tar.gz: by path, owner 0, mode 0600, ``at`` (seconds since 1970) as the time of all."""
    raw = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for part in sorted(parts, key=lambda part: part.path):
            info = tarfile.TarInfo(f"{folder}/{part.path}")
            info.size, info.mode, info.mtime = len(part.data), 0o600, int(max(0.0, at))
            tar.addfile(info, io.BytesIO(part.data))
    return raw.getvalue()


def to_tar(path: str, data: bytes, *, force: bool) -> None:
    """Whole or not at all. A file that is there stays unless ``force``; a link is replaced, not followed. Raises
    InputError."""
    try:
        descriptor, part = tempfile.mkstemp(prefix=".bundle.", dir=os.path.dirname(path) or ".")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            (os.replace if force else os.link)(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except FileExistsError:
        raise InputError(f"{path}: is there already; give another name, or --force to replace it") from None
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}; {_REMEDY}") from None


def to_folder(path: str, parts: Sequence[Part]) -> None:
    """A new folder, 0700, files 0600. Raises InputError; what was written until then stays."""
    try:
        os.mkdir(path, 0o700)
        root = _opened(path)
    except FileExistsError:
        raise InputError(f"{path}: is there already; give another name") from None
    except OSError as error:
        raise InputError(f"{path}: can't be made: {error.strerror}; {_REMEDY}") from None
    try:
        for part in sorted(parts, key=lambda part: part.path):
            _write(root, part)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}; remove it, make room and try again") from None
    finally:
        os.close(root)


def _opened(name: str, below: int | None = None) -> int:
    """Ours: whoever may write to the folder above could have put another in its place."""
    at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    info = os.fstat(at)
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        os.close(at)
        raise PermissionError(1, "somebody changed it meanwhile")
    return at


def _write(root: int, part: Part) -> None:
    at = os.dup(root)
    try:
        *folders, name = part.path.split("/")
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=at)
            below = _opened(folder, at)
            os.close(at)
            at = below
        with os.fdopen(os.open(name, _FLAGS, 0o600, dir_fd=at), "wb") as file:
            file.write(part.data)
    finally:
        os.close(at)
