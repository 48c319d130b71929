"""``nvidia-smi nvlink --status`` and ``-e``: links that are up, and error counters of each link.

Up to NVLink 4 a link counts Replay, Recovery and CRC errors; NVLink 5 has many counters, of which most are traffic or
errors that were corrected on the way (FEC): those are no fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nccl_slurm.capture.gpu import DOWN

__all__ = ["FATAL", "Errors", "Links", "errors", "status"]

_HEAD = re.compile(r"\s*GPU ([0-9]{1,4}|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{5,12})(?:: (.*))?")
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.+)")
_COUNTER = re.compile(r"([A-Za-z][A-Za-z /()-]{1,60}?) ?: ?([0-9]{1,20})\s*\Z")
_ALL_OFF = re.compile(r"all links are inactive", re.IGNORECASE)
#: Corrected on the way, or events of a healthy start: no error of the link.
_HARMLESS = re.compile(r"fec|packets|bytes|blocks|codes|successful|ber\b|symbol ber|effective ber", re.IGNORECASE)
#: Counters of which one is already a fault.
FATAL = ("recovery failed", "recovery errors")
_MAX = 64


@dataclass(frozen=True)
class Links:
    """``active``: links that tell a speed. ``off``: it has some, and all are said to be down. ``untold``: link and its
    word, where that tells neither."""

    active: int = 0
    inactive: tuple[int, ...] = ()
    off: bool = False
    untold: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Errors:
    """By ``Link N: name`` what is not zero. ``read``: how many counters there were."""

    counts: Mapping[str, int] = field(default_factory=dict)
    read: int = 0


def status(text: str) -> dict[str, Links]:
    """By the GPU's number (or bus id) as printed. A GPU of which all links are off prints none, or one line of words:
    then it is here with 0 active."""
    found: dict[str, Links] = {}
    for gpu, lines in _blocks(text).items():
        words = {int(one.group(1)): one.group(2).strip() for one in map(_LINK.match, lines) if one}
        up = [word for word in words.values() if word[:1].isdigit()]
        off = sorted(number for number, word in words.items() if word.strip("<>").lower() in DOWN)
        untold = sorted((number, word) for number, word in words.items() if number not in off and word not in up)
        all_off = not up and not untold and (bool(off) or any(_ALL_OFF.search(line) for line in lines))
        found[gpu] = Links(len(up), tuple(off[:_MAX]), all_off, tuple(untold[:_MAX]))
    return found


def errors(text: str) -> dict[str, Errors]:
    return {gpu: _errors(lines) for gpu, lines in _blocks(text).items()}


def _errors(lines: list[str]) -> Errors:
    counts: dict[str, int] = {}
    read = 0
    for link in filter(None, map(_LINK.match, lines)):
        counter = _COUNTER.match(link.group(2).strip())
        if counter is None or _HARMLESS.search(counter.group(1)):
            continue
        read += 1
        if int(counter.group(2)):
            counts[f"Link {link.group(1)}: {counter.group(1)}"] = int(counter.group(2))
    return Errors(counts, read)


def _blocks(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and len(found) < _MAX:
            lines = found.setdefault(head.group(1), [])
        elif head is None:
            lines.append(line)
    return found
