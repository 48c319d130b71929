"""Files of /proc: limits, memory, modules, kernel command line, versions. Sizes in bytes; None: not told."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "UNLIMITED",
    "Driver",
    "Limit",
    "amount",
    "driver",
    "kernel_release",
    "limits",
    "meminfo",
    "modules",
    "options",
    "seconds_up",
]

#: A limit without a number: more than any number.
UNLIMITED = float("inf")
_LIMIT = re.compile(r"(Max [a-z -]+?) {2,}(\S+) +(\S+)")
_MEMORY = re.compile(r"([A-Za-z_()0-9]{1,40}): +([0-9]{1,18})( kB)?")
_DRIVER = re.compile(r"NVRM version: (.*?) +([0-9]{3}\.[0-9.]{1,12})\b")
_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


@dataclass(frozen=True)
class Limit:
    """Numbers, or `UNLIMITED`."""

    soft: float
    hard: float


@dataclass(frozen=True)
class Driver:
    """``open``: the kernel module of which the source is open; DMA-BUF export needs it."""

    version: str
    open: bool


def limits(text: str) -> dict[str, Limit]:
    """``/proc/PID/limits`` by its own names: ``Max locked memory`` (bytes), ``Max open files``, ``Max stack size``."""
    found: dict[str, Limit] = {}
    for line in filter(None, map(_LIMIT.match, text.splitlines())):
        soft, hard = amount(line.group(2)), amount(line.group(3))
        if soft is not None and hard is not None:
            found[line.group(1)] = Limit(soft, hard)
    return found


def amount(word: object) -> float | None:
    """``unlimited`` or a number of at most 20 digits; the kernel's largest numbers mean no limit too."""
    text = str(word).strip().lower()
    if text in ("unlimited", "infinity", "-1"):
        return UNLIMITED
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    return UNLIMITED if int(text) >= 1 << 62 else float(text)


def meminfo(text: str) -> dict[str, int]:
    """Bytes, and bare counts of huge pages (``HugePages_Total``)."""
    lines = filter(None, map(_MEMORY.match, text.splitlines()))
    return {line.group(1): int(line.group(2)) * (1024 if line.group(3) else 1) for line in lines}


def modules(text: str) -> frozenset[str]:
    """Names of loaded modules from /proc/modules, or from lsmod's table."""
    words = (line.split() for line in text.splitlines())
    return frozenset(line[0] for line in words if len(line) > 1 and line[0] != "Module")


def options(text: str) -> dict[str, str]:
    """Of the kernel's command line; an option without a value has an empty one, the last of a name holds."""
    pairs = (word.partition("=") for word in text.split())
    return {name: value for name, _, value in pairs if name}


def driver(text: str) -> Driver | None:
    """``/proc/driver/nvidia/version``."""
    found = _DRIVER.search(text)
    return Driver(found.group(2), "open kernel module" in found.group(1).lower()) if found else None


def kernel_release(text: str) -> tuple[int, int] | None:
    found = _RELEASE.match(text.strip())
    return (int(found.group(1)), int(found.group(2))) if found else None


def seconds_up(text: str) -> float | None:
    """``/proc/uptime``."""
    word = text.split()[:1]
    return float(word[0]) if word and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", word[0]) else None
