"""The outbox: ``SPOOL/outbox/`` holds the written records for a daemon that fetches them, readable for one group.

A record there is a second name (hard link) of the run's ``record.json``: it costs no room, and is never half written.
The folder is root's, 0750: whoever is in the group reads all jobs' records, and can change none.
"""

from __future__ import annotations

import grp
import os
import re
import stat
from contextlib import suppress
from typing import NamedTuple

from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.spool import Run
from nccl_slurm.errors import InputError

__all__ = ["NAME", "Offer", "folder_of", "offer", "offers", "read", "withdraw_old"]

NAME = re.compile(r"(?P<job>[0-9]{1,18})\.(?P<start>[0-9]{1,18})\.(?P<node>[A-Za-z0-9._-]{1,255})\.json\Z")
MAX_RECORD_BYTES = 4 << 20
#: Newest first. A listing of so many names is below 2 MiB.
_MAX_OFFERS = 5000


class Offer(NamedTuple):
    """``size``: bytes."""

    name: str
    size: int


def folder_of(conf: Conf) -> str:
    return os.path.join(conf.spool, "outbox")


def offer(conf: Conf, run: Run, name: str) -> str | None:
    """Puts the run's record there as ``name``, in place of an older one. None, or why it can't be."""
    record = run.root("record.json")
    try:
        folder = _made(conf)
        os.chown(record, -1, _gid(conf.outbox_group))
        os.chmod(record, 0o640)
        part = os.path.join(folder, f".{name}.{os.getpid()}")
        os.link(record, part)
        os.rename(part, os.path.join(folder, name))
        with suppress(FileNotFoundError):
            os.unlink(part)  # rename(2) of two names of one file leaves both
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"outbox: {error.filename}: {error.strerror}"
    return None


def offers(conf: Conf, job_id: int | None = None) -> list[Offer]:
    """What this process may read there, newest run first. Raises InputError."""
    folder = folder_of(conf)
    try:
        names = [name for name in os.listdir(folder) if _is_of(name, job_id)]
    except OSError as error:
        if conf.outbox_group and isinstance(error, FileNotFoundError):
            return []  # no record has been written yet
        raise InputError(f"{folder}: {error.strerror}; set NCCL_SLURM_OUTBOX_GROUP to a group of this user") from None
    names.sort(key=lambda name: int(name.split(".")[1]), reverse=True)
    found = []
    for name in names[:_MAX_OFFERS]:
        with suppress(OSError):
            found.append(Offer(name, os.lstat(os.path.join(folder, name)).st_size))
    return found


def read(conf: Conf, name: str) -> bytes:
    """Raises InputError."""
    if NAME.match(name) is None:
        raise InputError(f"{name}: no name of a record; give <job>.<seconds>.<node>.json")
    path = os.path.join(folder_of(conf), name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if data is None or len(data) > MAX_RECORD_BYTES:
        raise InputError(f"{path}: no file of 4 MiB at most")
    return data


def withdraw_old(conf: Conf) -> list[str]:
    """Records of runs whose folder is gone, and all where nothing is to be offered. What can't be, one line each."""
    folder = folder_of(conf)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{folder}: {error.strerror}"]
    for name in names:
        run = ".".join(name.lstrip(".").split(".")[:2])
        if not conf.outbox_group or not os.path.isdir(os.path.join(conf.spool, run)):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
    return []


def _is_of(name: str, job_id: int | None) -> bool:
    match = NAME.match(name)
    return match is not None and (job_id is None or int(match["job"]) == job_id)


def _made(conf: Conf) -> str:
    folder, gid = folder_of(conf), _gid(conf.outbox_group)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise InputError(f"{folder}: no folder; remove it")
    if info.st_gid != gid or stat.S_IMODE(info.st_mode) != 0o750:
        os.chown(folder, -1, gid)
        os.chmod(folder, 0o750)  # noqa: S103 # its group is there to read
    return folder


def _gid(group: str) -> int:
    try:
        return int(group) if group.isascii() and group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise InputError(f"outbox: no group {group!r} on this node; make it, or mend NCCL_SLURM_OUTBOX_GROUP") from None
