"""Removing what a job's user made: of any depth, with any number of names, while that user's processes add to it."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from nccl_slurm.capture import child, command

__all__ = ["mount_below", "remove"]

_OCTAL = re.compile(r"\\([0-7]{3})")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str, limit_s: float) -> list[str]:
    """A run's folder, or its ``user/``. Returns why it was not removed: then root's part of the run is there as before,
    and the timer tries again.

    rm works by descriptor, follows no link and bears any depth.
    """
    end = time.monotonic() + limit_s
    mount = mount_below(path)
    if mount is not None:
        return [f"{path}: not removed: {mount} is a mount point"]
    user = path if os.path.basename(path) == "user" else os.path.join(path, "user")
    why = _taken(user, limit_s) or _rm(user, end) or _rm(path, end)
    return [] if why is None else [f"{path}: not removed: {why[:300]}"]


def mount_below(path: str) -> str | None:
    """The first mount point in a folder, or the folder itself. By the kernel's list: a user's own file system (FUSE)
    may never answer."""
    above, name = os.path.split(path)
    real = os.path.join(os.path.realpath(above), name)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = [_OCTAL.sub(lambda found: chr(int(found.group(1), 8)), line.split(" ")[4]) for line in table]
    return next((point for point in points if point == real or point.startswith(real + "/")), None)


def _rm(path: str, end: float) -> str | None:
    limit_s = max(1.0, end - time.monotonic())
    return command.run(["rm", "-rf", "--one-file-system", "--", path], limit_s=limit_s).why


def _taken(user: str, limit_s: float) -> str | None:
    """None where all folders are root's now, else why not. In a child: what is mounted there meanwhile may hang."""
    if os.geteuid() != 0 or not os.path.isdir(user):
        return None
    return child.answer_of(lambda: _take_all(user), limit_s=limit_s, limit_bytes=1 << 10).why


def _take_all(user: str) -> str:
    """Each folder is root's before its names are read. So by then nobody can add to it, whoever holds it open, nobody
    can move it, and ``..`` leads back."""
    here = os.open(user, _FOLDER)
    device = os.fstat(here).st_dev
    to_come = [_take(here)]
    while to_come:
        way = to_come[-1].pop() if to_come[-1] else ".."
        if way == "..":
            to_come.pop()
        if to_come and (there := _opened(way, here, device)) is not None:
            os.close(here)
            here = there
            if way != "..":
                to_come.append(_take(here))
    return ""


def _take(folder: int) -> list[str]:
    """Names of the folders in it."""
    os.fchown(folder, 0, 0)
    os.fchmod(folder, 0o700)
    with os.scandir(folder) as names:
        return [one.name for one in names if one.is_dir(follow_symlinks=False)]


def _opened(name: str, above: int, device: int) -> int | None:
    """None for what is mounted there; rm leaves it too."""
    with suppress(OSError):
        folder = os.open(name, _FOLDER, dir_fd=above)
        if os.fstat(folder).st_dev == device:
            return folder
        os.close(folder)
    return None
