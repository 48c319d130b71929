"""Which of a large file's first and last lines can say whose they are, or when: of bytes, before any line is read.

Taking labels off costs ten microseconds a line, and of a rank's own file nearly all is known by one line at each end.
A line may be said to tell something that it does not; never the other way round.
"""

from __future__ import annotations

from functools import cached_property
from typing import Sequence

from nccl_slurm.parse.scan import LINE_LIMIT, text_of

__all__ = ["Few"]

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
#: What labels of a global rank hold (`prefix`), digits as zeros; Go's JSON writes the ``<`` of Open MPI's as a number.
_RANKS = (b"[rank0", b"[rank=0", b"]<std", b"]\\u000cstd", b"[RANK 0", b"[default:0")
#: The same as far as they have no digits.
_RANK_STARTS = (b"[rank", b"]<std", b"]\\u00", b"[RANK ", b"[default:")
_TIMES = (b"00:00:00", b"0000000000", b"libfabric:", b"{")


class Few:
    """``lines``: without their ends. ``ranked``: numbers of those that may have a label that says a global rank."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = lines
        text = b"\n".join(lines)
        starts = [start for start in _RANK_STARTS if start in text]
        self.ranked = {number for start in starts for number, line in enumerate(lines) if start in line}
        self.ranked = {number for number in self.ranked if _holds(lines[number], _RANKS)}

    @cached_property
    def timed(self) -> bool:
        """Whether any may have a time."""
        return _holds(b"\n".join(self.lines), _TIMES)

    def tells_time(self, number: int) -> bool:
        """Whether it may have a time: a clock, seconds since 1970 at its start, or an envelope with either."""
        flat = self.lines[number].translate(_ZEROS)
        if b"00:00:00" in flat or flat.startswith(b"0000000000"):
            return True
        return b"libfabric:" in flat or flat.lstrip().startswith(b"{")

    def text(self, number: int) -> str:
        return text_of(self.lines[number][:LINE_LIMIT])


def _holds(text: bytes, signs: Sequence[bytes]) -> bool:
    flat = text.translate(_ZEROS)
    return any(sign in flat for sign in signs)
