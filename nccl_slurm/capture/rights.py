"""Giving root away for good: the rights of one user, and limits that a hostile file can't make us exceed."""

from __future__ import annotations

import os
import pwd
import resource

from nccl_slurm.errors import InputError

__all__ = ["become", "limit_resources"]


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
    """No core file, no file written, and an end to CPU time and memory."""
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
