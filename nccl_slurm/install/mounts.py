"""Which file system a path is on, read from the mount table alone: asking a dead network mount would hang."""

from __future__ import annotations

import os
import re

__all__ = ["is_network", "network_file_system", "read_table"]

#: Types of /proc/self/mountinfo whose files may vanish or hang with another machine. autofs: not mounted yet.
_NETWORK = re.compile(
    r"(nfs|nfs4|lustre|lustre_lite|cifs|smb3|smbfs|ceph|gpfs|mmfs|beegfs|9p|afs|wekafs|panfs|pvfs2|orangefs|glusterfs"
    r"|daos|vastnfs|autofs|virtiofs|fuse\.(?!fuse-overlayfs|lxcfs|portal).*)\Z"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def read_table() -> str:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def network_file_system(path: str, table: str) -> str | None:
    """Its type (``nfs4``, ``lustre`` …) where ``path`` would be on one, else None."""
    kind = _type_of(path, table)
    return kind if is_network(kind) else None


def is_network(kind: str) -> bool:
    """``kind`` as the mount table and findmnt(8) write it."""
    return _NETWORK.match(kind) is not None


def _type_of(path: str, table: str) -> str:
    """Of the longest mount point above ``path``; of two mounts at one place the later one hides the earlier."""
    best, kind = "", ""
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not rest:
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), words[4])
        if _is_above(point, path) and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind


def _is_above(point: str, path: str) -> bool:
    return point == "/" or os.path.normpath(path) == point or os.path.normpath(path).startswith(point + "/")
