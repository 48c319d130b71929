"""How many runs a node works on at a time: each holds a slot, the lock of a file, for as long as its process lives.

In the file is whose run it is, so that the next worker knows too. Some slots are for users who hold none: whoever makes
four own runs slow keeps nobody else's waiting.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import NamedTuple

from nccl_slurm.capture import queue

__all__ = ["OPEN", "RESERVED", "Held", "held", "take"]

#: For anybody, and for users who hold none.
OPEN, RESERVED = 4, 4


class Held(NamedTuple):
    """``since``: seconds since 1970."""

    user: str
    since: float


def take(spool: str, user: str) -> int | None:
    """A descriptor with a slot's lock, which a forked child shares. None where there is none for this user."""
    count = OPEN if any(one.user == user for one in held(spool)) else OPEN + RESERVED
    for number in range(count):
        slot = _open(spool, number, os.O_CREAT)
        if slot is not None and _locked(slot):
            _sign(slot, user)
            return slot
        _close(slot)
    return None


def _sign(slot: int, user: str) -> None:
    """On a full disk it stays unknown whose run it is, no more."""
    with suppress(OSError):
        os.utime(slot)
        os.ftruncate(slot, 0)
        os.pwrite(slot, user.encode("ascii"), 0)


def held(spool: str) -> list[Held]:
    """By whatever process, of whichever worker."""
    return [one for one in (_held(spool, number) for number in range(OPEN + RESERVED)) if one is not None]


def _held(spool: str, number: int) -> Held | None:
    slot = _open(spool, number)
    try:
        if slot is None or _locked(slot):
            return None
        return Held(os.pread(slot, 20, 0).decode("ascii", "replace"), os.fstat(slot).st_mtime)
    finally:
        _close(slot)


def _open(spool: str, number: int, create: int = 0) -> int | None:
    path = os.path.join(queue.folder(spool), f"lock.slot{number}")
    try:
        return os.open(path, os.O_RDWR | create | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _close(slot: int | None) -> None:
    if slot is not None:
        os.close(slot)


def _locked(slot: int) -> bool:
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
