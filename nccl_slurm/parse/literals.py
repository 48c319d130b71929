"""The few literals that are searched for in large log files, and what they cover.

The number of literals matters more than the program: GNU grep did 0.48 GB a second of CPU with 16 and 0.15 with 86,
ripgrep 1.4 and 0.4. So these are not the anchors of the rows (there are hundreds), but parts of the *lines* that rows
are made for: what a program writes around the words that a row knows. A row whose sample has none of them says so
(``where``, see `patterns.Row`) or costs its own anchors on top, and so does a site's row: slower, never blind.
"""

from __future__ import annotations

from typing import Iterable, Sequence

__all__ = ["ENDS", "LITERALS", "LITERALS_LIMIT", "at_ends", "covers", "everywhere"]

#: More than this and both programs leave their fast path.
LITERALS_LIMIT = 16

LITERALS: tuple[bytes, ...] = (
    b"rror",  # error, Error: Python's exceptions, CUDA, Slurm's commands, the kernel
    b"ERROR",  # Python's logging
    b"ailed",
    b"Traceback (most",  # what comes below it is read line by line
    b".cpp:",  # torch's C++ log names its source file
    b"NCCL WARN ",
    b" busId ",  # NCCL: Init START and COMPLETE, Abort, Destroy
    b"Using ",  # NCCL: network, interfaces, transport
    b"NCCL INFO Channel ",
    b"NCCL INFO N",  # NET/IB, NET/OFI, NET/Plugin, NVLS, NCCL_… set by environment to
    b"ersion",
    b"elastic",  # torch's agent names its module or its file
    b"ignal",
    b"Kill",
    b"orld",  # world size
    b"NVRM: ",
)

#: Parts of several anchors each, to search the ends of files for fewer.
ENDS: tuple[bytes, ...] = (
    b"  : ",
    b"srun: ",
    b"ob step ",
    b"_MISMATCH",
    b"rovider",
    b"Connection closed by ",
    b". RC:",
    b"FI_",
    b"fabric",
    b" ranks",
    b" process",
    b" address",
    b" memory",
    b" timeout",
    b"(): ",
    b"corrupt",
    b"ommunicat",
    b"xception",
)


def covers(line: str) -> bool:
    raw = line.encode("utf-8", "replace")
    return any(literal in raw for literal in LITERALS)


def everywhere(rows: Iterable[tuple[str | None, Sequence[str]]]) -> tuple[bytes, ...]:
    """``LITERALS`` and, for each row (sample, anchors) whose sample has none of them, its anchors.

    Without a sample nothing is known of the lines around the anchors: each one that holds no literal counts.
    """
    found = dict.fromkeys(LITERALS)
    for sample, anchors in rows:
        if sample is None or not covers(sample):
            found.update(dict.fromkeys(anchor.encode() for anchor in anchors if not covers(anchor)))
    return tuple(found)


def at_ends(anchors: Iterable[str]) -> tuple[bytes, ...]:
    """Of ``ENDS``, and of the anchors themselves, as few as stand for all anchors that hold no literal."""
    found: dict[bytes, None] = {}
    for anchor in anchors:
        raw = anchor.encode()
        if not covers(anchor):
            found[next((part for part in ENDS if part in raw), raw)] = None
    return tuple(found)
