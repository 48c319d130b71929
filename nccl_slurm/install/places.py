"""Refuses folders in which an installation would be unsafe: what anybody could change, or what can vanish."""

from __future__ import annotations

import os
import stat
from typing import Collection

from nccl_slurm.errors import InputError
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.mounts import network_file_system

__all__ = ["check", "check_events", "check_shared", "check_spool", "writable_by_others"]

#: Hooks and installer make it so, and hardly anybody else.
_SPOOL_MODE = 0o711


def check(layout: Layout, mount_table: str) -> None:
    """Raises InputError."""
    hooks = layout.on_disk(layout.hooks)
    for path in (hooks, os.path.realpath(hooks)):
        kind = network_file_system(path, mount_table)
        if kind:
            raise InputError(
                f"--hooks {layout.hooks}: is on a network file system ({kind}). Slurm drains a node whose hook can't be"
                " run, and that file system may hang or vanish; give a folder on the node's own disk"
            )
    for option, path in (("--prefix", layout.prefix), ("--hooks", layout.hooks), ("--conf", layout.conf)):
        where = writable_by_others(layout.on_disk(path))
        if where:
            raise InputError(f"{option} {path}: {where} is writable by others than root, and root runs what is there")


def writable_by_others(path: str, owners: Collection[int] = (0,)) -> str | None:
    """The first folder above ``path``, itself included, in which a user besides ``owners`` could put things of theirs.

    Links on the way count as well as where they lead to.
    """
    return _open_above(path, owners) or _open_above(os.path.realpath(path), owners)


def _open_above(path: str, owners: Collection[int]) -> str | None:
    while True:
        try:
            info = os.stat(path)
        except FileNotFoundError:
            info = None
        if info is not None and (info.st_uid not in owners or _is_open(info)):
            return path
        if path == "/":
            return None
        path = os.path.dirname(path)


def _is_open(info: os.stat_result) -> bool:
    """A sticky folder (/tmp) is not: others can make names there, and can't take ours. Root's group is root."""
    if info.st_mode & stat.S_ISVTX:
        return False
    return bool(info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and info.st_gid != 0))


def check_shared(shared: str, on_disk: str, owners: Collection[int]) -> None:
    """Raises InputError where users could put a folder of their own in the place of ours. ``owners``: root, and the
    shipping user where there is one."""
    try:
        info = os.lstat(on_disk)
    except FileNotFoundError:
        return _check_above("--shared", shared, on_disk, owners)
    if not stat.S_ISDIR(info.st_mode):
        raise InputError(f"--shared {shared}: is no folder; give one of its own on the cluster's file system")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(f"--shared {shared}: users may write there; give a folder of its own, as {shared}/nccl-slurm")
    if info.st_uid not in owners:
        remedy = "chown it to root, or where root is squashed give its owner with --ship-user"
        raise InputError(f"--shared {shared}: belongs to uid {info.st_uid}, who could replace what is in it; {remedy}")
    return _check_above("--shared", shared, on_disk, owners)


def _check_above(option: str, path: str, on_disk: str, owners: Collection[int]) -> None:
    where = writable_by_others(os.path.dirname(on_disk), owners)
    if where:
        why = "others than root can change, who could put a folder of theirs in its place"
        raise InputError(f"{option} {path}: lies below {where}, which {why}; give one below folders of root")


def check_spool(spool: str, on_disk: str, mount_table: str) -> None:
    """Raises InputError for a folder that others use, since its mode would change."""
    _check_above("--spool", spool, on_disk, (0,))
    kind = network_file_system(on_disk, mount_table)
    if kind:
        raise InputError(f"--spool {spool}: is on a network file system ({kind}); give a folder on a local disk")
    try:
        info, names = os.lstat(on_disk), os.listdir(on_disk)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise InputError(f"--spool {spool}: is no folder; move it away, or give another") from None
    if names and (info.st_uid, stat.S_IMODE(info.st_mode)) != (0, _SPOOL_MODE):
        raise InputError(f"--spool {spool}: holds {sorted(names)[0]!r}, which is not ours; give a folder of its own")


def check_events(events: str, on_disk: str) -> None:
    """Raises InputError. It is SlurmUser's itself; what is above is not."""
    _check_above("NCCL_SLURM_EVENTS", events, on_disk, (0,))
