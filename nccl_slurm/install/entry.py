"""A path as it shall be, a path as it is, and what lies between the two. Nothing here touches a disk."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

__all__ = ["ABSENT", "Entry", "Seen", "changes", "text_difference"]


@dataclass(frozen=True)
class Entry:
    """``kind``: folder, file or link; ``content`` of a link is its target.

    ``keep``: what a file that is there says stays (a site's own edits), a folder keeps owner and mode. ``belongs``
    tells how it goes at an uninstall: file, folder (when empty), tree (with all that is in it), conf and data (the
    same, but for --keep-data).
    """

    path: str
    kind: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    keep: bool = False
    belongs: str = "file"


@dataclass(frozen=True)
class Seen:
    """What is at a path now. ``kind`` is empty where nothing is, ``other`` for devices, sockets and FIFOs."""

    kind: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    content: bytes = b""


ABSENT = Seen()


def changes(entry: Entry, seen: Seen) -> list[str]:
    """What has to be done, in words; empty where all is as wanted."""
    if not seen.kind:
        return ["create"]
    if seen.kind != entry.kind:
        return [f"replace the {seen.kind} that is there"]
    words = ["replace"] if entry.kind != "folder" and not entry.keep and seen.content != entry.content else []
    if entry.kind == "link" or (entry.keep and entry.kind == "folder"):
        return words
    if seen.mode != entry.mode:
        words.append(f"mode {seen.mode:04o} -> {entry.mode:04o}")
    if (seen.uid, seen.gid) != (entry.uid, entry.gid):
        words.append(f"owner {seen.uid}:{seen.gid} -> {entry.uid}:{entry.gid}")
    return words


def text_difference(entry: Entry, seen: Seen) -> list[str]:
    """Unified diff of a file's text; empty for what is no text, is new, or stays."""
    if entry.kind != "file" or seen.kind != "file" or entry.keep:
        return []
    try:
        before, after = seen.content.decode().splitlines(), entry.content.decode().splitlines()
    except UnicodeDecodeError:
        return []
    return list(difflib.unified_diff(before, after, entry.path, entry.path, "now", "then", lineterm=""))
