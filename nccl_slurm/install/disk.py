"""Looks at paths and makes them what they shall be. Files appear whole, by a rename; no link is ever followed."""

from __future__ import annotations

import os
import shutil
import stat

from nccl_slurm.capture.rights import become
from nccl_slurm.errors import InstallError
from nccl_slurm.install.entry import ABSENT, Entry, Seen

__all__ = ["make", "remove", "see"]

_MAX_BYTES = 64 << 20


def see(path: str) -> Seen:
    """Raises InstallError where it can't be looked at."""
    try:
        info = os.lstat(path)
        return Seen(_kind(info.st_mode), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, _content(path, info))
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        raise InstallError(f"{path}: {error.strerror}; look at it as root") from None


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "link"))
    return next((name for test, name in kinds if test(mode)), "other")


def _content(path: str, info: os.stat_result) -> bytes:
    if stat.S_ISLNK(info.st_mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(info.st_mode):
        return b""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES)


def make(entry: Entry, path: str) -> None:
    """``path`` is the entry's place on the disk. Raises OSError, InstallError."""
    seen = see(path)
    if entry.kind == "folder":
        _folder(entry, path, seen)
    elif entry.kind == "link":
        _link(entry, path, seen)
    elif entry.keep and seen.kind == "file":
        _own_and_mode(entry, path)
    else:
        _file(entry, path, seen)


def _folder(entry: Entry, path: str, seen: Seen) -> None:
    if seen.kind not in ("", "folder"):
        raise InstallError(f"{path}: is a {seen.kind} where a folder has to be; move it away")
    try:
        if not seen.kind:
            os.mkdir(path, 0o700)
        if not (seen.kind and entry.keep):
            _own_and_mode(entry, path)
    except PermissionError:
        _folder_as_owner(entry, path)


def _folder_as_owner(entry: Entry, path: str) -> None:
    """Where root is squashed on the file system its owner alone can make it. In a child, which gives root away."""
    child = os.fork()
    if child == 0:
        os._exit(_make_as_owner(entry, path))
    if os.waitpid(child, 0)[1] != 0:
        raise InstallError(f"{path}: neither root nor uid {entry.uid} may make it; make it by hand for that user")


def _make_as_owner(entry: Entry, path: str) -> int:
    try:
        become(entry.uid, entry.gid)
        if not os.path.isdir(path):
            os.mkdir(path, 0o700)
        _own_and_mode(entry, path)
    except BaseException:  # whatever it is, the parent says that it failed
        return 1
    return 0


def _own_and_mode(entry: Entry, path: str) -> None:
    """By a descriptor: between the look and the change nobody can put a link there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        info = os.fstat(descriptor)
        if (info.st_uid, info.st_gid) != (entry.uid, entry.gid):
            os.fchown(descriptor, entry.uid, entry.gid)
        os.fchmod(descriptor, entry.mode)
    finally:
        os.close(descriptor)


def _file(entry: Entry, path: str, seen: Seen) -> None:
    if seen.kind == "folder":
        raise InstallError(f"{path}: is a folder where a file has to be; move it away")
    part = _beside(path)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(entry.content)
            file.flush()
            os.fchown(file.fileno(), entry.uid, entry.gid)
            os.fchmod(file.fileno(), entry.mode)
            os.fsync(file.fileno())
        os.rename(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _link(entry: Entry, path: str, seen: Seen) -> None:
    if seen.kind == "folder":
        raise InstallError(f"{path}: is a folder where a link has to be; move it away")
    part = _beside(path)
    os.symlink(entry.content, part)
    os.rename(part, path)


def _beside(path: str) -> str:
    """A hidden name in the same folder, which Slurm's glob for hooks does not match. By host, since nodes may share the
    folder; what an interrupted run left there goes."""
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.uname().nodename}.new")
    if os.path.lexists(part):
        os.unlink(part)
    return part


def remove(path: str, whole: bool) -> bool:
    """False where nothing was there, or where a folder that is not ours to empty (``whole``) holds something."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif whole:
            shutil.rmtree(path)
        else:
            os.rmdir(path)
    except FileNotFoundError:
        return False
    except OSError:
        if whole or not os.path.isdir(path):
            raise
        return False
    return True
