"""What an installer run made here, one line a path, so that an upgrade drops what is stale and an uninstall finds all.

It is written before the first change: an installation that broke off can be taken away too.
"""

from __future__ import annotations

import os
from typing import Iterable

from nccl_slurm.install.layout import Layout

__all__ = ["KINDS", "format_manifest", "parse_manifest", "path_of", "read_manifest"]

KINDS = ("file", "folder", "tree", "conf", "data")


def path_of(layout: Layout, role: str) -> str:
    return os.path.join(layout.conf, f"installed.{role}")


def parse_manifest(text: str) -> dict[str, str]:
    """Path → kind; lines that are none of ours are left out."""
    found = {}
    for line in text.splitlines():
        kind, _, path = line.partition(" ")
        if kind in KINDS and os.path.isabs(path) and ".." not in path.split("/"):
            found[path] = kind
    return found


def format_manifest(kinds: dict[str, str]) -> str:
    return "".join(f"{kind} {path}\n" for path, kind in sorted(kinds.items()))


def read_manifest(layout: Layout, roles: Iterable[str]) -> dict[str, str]:
    """Of these roles together; empty where none is installed."""
    found: dict[str, str] = {}
    for role in roles:
        try:
            with open(layout.on_disk(path_of(layout, role)), encoding="utf-8") as file:
                found.update(parse_manifest(file.read()))
        except FileNotFoundError:
            continue
    return found
