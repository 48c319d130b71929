"""Giving root away for good: the rights of one user, and limits that a hostile file can't make us exceed."""

from __future__ import annotations

import os
import pwd
import resource
from contextlib import suppress
from typing import Any

from nccl_slurm.errors import InputError

ctypes: Any = None
with suppress(ImportError, MemoryError):  # at once: each of a worker's readers would load it anew
    import ctypes

__all__ = ["become", "limit_resources"]

#: linux/prctl.h
_DUMPABLE, _NO_NEW_PRIVS = 4, 38


def become(uid: int, gid: int, user: str | None = None) -> None:
    """This process gets the user's rights, with no way back. Raises InputError.

    ``user``: name by which supplementary groups are looked up (may ask LDAP); without it, or where the name has
    another uid, there are none. Where this process already runs as ``uid`` nothing changes.
    """
    if os.geteuid() != 0:
        if os.getresuid() != (uid, uid, uid):
            raise InputError(f"only root can read as uid {uid}; this is uid {os.geteuid()}")
        return
    if uid == 0:
        return
    os.setgroups(_groups(user, uid, gid))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or _is_root_again():
        raise InputError(f"could not take the rights of uid {uid}")
    _shut()


def _shut() -> None:
    """No program that this process runs gets more rights; no process of the user may trace it or look into it.

    setresuid(2) sets the second as fs.suid_dumpable says, which a site may have changed, so it is said again after it.
    Where ctypes is missing (a slim Python) or may make no code page (MemoryDenyWriteExecute) the system's way stays.
    """
    with suppress(OSError, AttributeError, MemoryError):
        libc = ctypes.CDLL(None)
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def _groups(user: str | None, uid: int, gid: int) -> list[int]:
    if not user:
        return [gid]
    try:
        if pwd.getpwnam(user).pw_uid != uid:
            return [gid]
        return [group for group in os.getgrouplist(user, gid) if group != 0]
    except (KeyError, OSError):
        return [gid]


def _is_root_again() -> bool:
    try:
        os.setuid(0)
    except OSError:
        return False
    return True


def limit_resources(cpu_s: int, memory_bytes: int) -> None:
    """No core file, no file written, an end to CPU time and memory, and the first to go where the machine has none."""
    _first_to_go()
    for which, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def _first_to_go() -> None:
    """Before root is given away: /proc/self is root's after it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
