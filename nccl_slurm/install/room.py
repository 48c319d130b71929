"""Whether a plan can be carried out, looked up before the first change: half an installation is worse than none."""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple

from nccl_slurm.install import disk
from nccl_slurm.install.entry import Entry, changes
from nccl_slurm.install.layout import Layout

__all__ = ["obstacles"]

#: Of a file: its last block, its name and its inode.
_EACH_BYTES = 4096
_SHOWN = 5


class _Need(NamedTuple):
    """What is to be written on one file system, and a folder of it."""

    folder: str
    bytes: int = 0
    names: int = 0


def obstacles(entries: Iterable[Entry], layout: Layout) -> list[str]:
    """What is in the way, one line each with its remedy: something of another kind at a path, a read-only or a full
    file system. Raises InstallError where a path can't be looked at."""
    wrong: list[str] = []
    needs: dict[int, _Need] = {}
    for entry in entries:
        path = layout.on_disk(entry.path)
        seen = disk.see(path)
        if "folder" in (entry.kind, seen.kind) and seen.kind not in ("", entry.kind):
            wrong.append(
                f"{path}: is a {seen.kind} where a {entry.kind} has to be; move it away, or give another place"
            )
        elif changes(entry, seen):
            _add(needs, path, len(entry.content) if entry.kind == "file" else 0)
    more = [f"and {len(wrong) - _SHOWN} more of that kind"] if len(wrong) > _SHOWN else []
    return [*wrong[:_SHOWN], *more, *(line for need in needs.values() for line in _short_of(need))]


def _add(needs: dict[int, _Need], path: str, size: int) -> None:
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    device = os.stat(folder).st_dev
    need = needs.get(device, _Need(folder))
    needs[device] = need._replace(bytes=need.bytes + size + _EACH_BYTES, names=need.names + 1)


def _short_of(need: _Need) -> list[str]:
    """File systems without inodes of a fixed number (btrfs) count none: 0 of 0."""
    there = os.statvfs(need.folder)
    if there.f_flag & os.ST_RDONLY:
        return [f"{need.folder}: its file system is read-only; mount it writable, or give another place"]
    if there.f_bavail * there.f_frsize < need.bytes:
        return [f"{need.folder}: its file system is full, {need.bytes >> 10} KiB are needed; make room"]
    if there.f_files and there.f_favail < need.names:
        return [f"{need.folder}: its file system has no room for {need.names} more names (inodes); make room"]
    return []
