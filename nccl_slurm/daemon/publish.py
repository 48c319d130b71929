"""Root-owned copies of reports in the shared folder, each readable for its job's owner alone.

The owner is let in by a POSIX ACL (acl(5)), written as the kernel's extended attribute so that no setfacl is needed. On
a file system without ACLs nothing is published: giving the file to the user would let them rewrite it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nccl_slurm.errors import InputError

__all__ = ["acl_for", "is_published", "publish", "published_name", "unpublish"]

_ID = re.compile(r"[0-9]{1,18}([_+][0-9]{1,18})?")
# linux/posix_acl_xattr.h: version 2, then (tag, permissions, id) triples in this order of tags
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER, _NO_ID = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF


def acl_for(uid: int) -> bytes:
    """user::rw-, user:UID:r--, group::---, mask::r--, other::---"""
    entries = [
        (_USER_OBJ, 6, _NO_ID),
        (_USER, 4, uid),
        (_GROUP_OBJ, 0, _NO_ID),
        (_MASK, 4, _NO_ID),
        (_OTHER, 0, _NO_ID),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def published_name(job_id: str, run: int | None = None) -> str:
    """File name in ``reports/``; the newest run has a name without its number. ValueError on anything but an id."""
    if not _ID.fullmatch(job_id):
        raise ValueError(f"{job_id!r} is no job id")
    return f"{job_id}.json" if run is None else f"{job_id}.run{int(run)}.json"


def is_published(folder: str, job_id: str, run: int, made: float) -> bool:
    """Whether the run's copy is that of the report made then: after a restored backup of the store it may be of a later
    one. Copies carry that time; some file systems keep whole seconds."""
    try:
        at = os.stat(os.path.join(folder, published_name(job_id, run)), follow_symlinks=False).st_mtime
    except OSError:
        return False
    return abs(at - made) < 0.01 or at == int(made)


def publish(
    folder: str, report: Mapping[str, Any], uid: int, *, made: float, newest: bool, owners: Collection[int] = ()
) -> str | None:
    """Writes the copies, that of the run last: where it is, all are. Returns None, or why it was not published.

    ``made``: when, in seconds since 1970. ``owners``: users besides root and this one who may own the folder, as those
    whose records are believed.

    Never raises OSError.
    """
    job = report["job"]
    data = json.dumps(report).encode()
    names = ([published_name(job["id"])] if newest else []) + [published_name(job["id"], job["run"])]
    try:
        for name in names:
            _write(folder, name, data, uid, made, owners)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
            return f"{folder}: this file system has no POSIX ACLs, so users can't read their reports there"
        return f"{folder}: {error.strerror}"
    return None


def unpublish(folder: str, names: Iterable[str], *, owners: Collection[int] = ()) -> None:
    """Removes copies that are there. Raises InputError where the folder can't be opened: it may only be away."""
    try:
        at = _opened(folder, owners)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; old reports stay until it is there") from None
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)
    finally:
        os.close(at)


def _opened(folder: str, owners: Collection[int]) -> int:
    """Whoever may write into a folder may replace what lies in it: reports go only where nobody else can."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(at)
    why = ""
    if info.st_uid not in {0, os.geteuid(), *owners}:
        why = f"belongs to uid {info.st_uid}; chown it to the daemon's user, or add {info.st_uid} to daemon.record_uids"
    elif info.st_mode & 0o022:
        why = f"others may write here (mode {stat.S_IMODE(info.st_mode):04o}); chmod 0711"
    if why:
        os.close(at)
        raise PermissionError(errno.EPERM, why)
    return at


def _write(folder: str, name: str, data: bytes, uid: int, made: float, owners: Collection[int]) -> None:
    at = _opened(folder, owners)
    part = f".{name}.part"  # one daemon writes here: what a killed one left is found again, and removed
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=at)
        descriptor = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.setxattr(file.fileno(), "system.posix_acl_access", acl_for(uid))
                file.write(data)
                file.flush()
                os.utime(file.fileno(), (made, made))
                os.fsync(file.fileno())
            os.rename(part, name, src_dir_fd=at, dst_dir_fd=at)
        except OSError:
            os.unlink(part, dir_fd=at)
            raise
    finally:
        os.close(at)
