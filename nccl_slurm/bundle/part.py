"""One file of a bundle, and which of them fit. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_slurm.hosts import HOST
from nccl_slurm.parse.redact import redacted
from nccl_slurm.report.quote import without_secrets
from nccl_slurm.report.visible import visible

__all__ = ["CHECKSUMS", "Part", "checksums", "fitting", "folder_of", "json_part", "safe", "text_part"]

CHECKSUMS = "SHA256SUMS"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 80


@dataclass(frozen=True)
class Part:
    """``path``: below the bundle's folder, made of our words and `safe` names. ``what``: in one line, ours. The lowest
    ``order`` stays longest where the bundle is too large."""

    path: str
    data: bytes
    what: str
    order: int = 5


def text_part(path: str, text: str, what: str, order: int = 5) -> Part:
    """Secrets are redacted first, over all lines; then what a terminal would act on is shown as an escape."""
    lines = [visible(line) for line in redacted(text).split("\n")]
    return Part(path, ("\n".join(lines).rstrip("\n") + "\n").encode(), what, order)


def json_part(path: str, value: Any, what: str, order: int = 5, *, clean: bool = False) -> Part:
    """ASCII, keys in order: the same facts make the same bytes. ``clean``: it was redacted before."""
    text = json.dumps(value if clean else without_secrets(value), indent=1, sort_keys=True, default=str)
    return Part(path, (text + "\n").encode(), what, order)


def safe(name: str, number: int) -> str:
    """A name of others as a part of a path: never empty, hidden, a step up, or the same for two numbers."""
    if HOST.match(name) and len(name) <= _NAME_MAX and ".." not in name:
        return name
    words = _UNSAFE.sub("_", name.rpartition("/")[2]).strip("._")[:_NAME_MAX]
    return f"{number:03d}-{words}" if words else f"{number:03d}"


def folder_of(names: Iterable[str]) -> dict[str, str]:
    """Node → its folder's name, each its own also where the file system ignores case."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for number, name in enumerate(sorted(set(names)), start=1):
        folder = safe(name, number)
        if folder.lower() in taken:
            folder = f"{number:03d}-{folder}"
        taken.add(folder.lower())
        found[name] = folder
    return found


def fitting(parts: Sequence[Part], most: int) -> tuple[list[Part], list[Part]]:
    """(kept, left out) of at most ``most`` bytes in all: by order, then as given. Order 0 always stays."""
    room = most
    kept: list[Part] = []
    left: list[Part] = []
    for part in sorted(parts, key=lambda part: part.order):
        fits = part.order == 0 or len(part.data) <= room
        room -= len(part.data) if fits else 0
        (kept if fits else left).append(part)
    return kept, left


def checksums(parts: Iterable[Part]) -> Part:
    """For ``sha256sum -c``."""
    lines = [f"{hashlib.sha256(part.data).hexdigest()}  {part.path}" for part in sorted(parts, key=lambda p: p.path)]
    return Part(CHECKSUMS, ("\n".join(lines) + "\n").encode(), "checksums of all other files", 0)
