"""Times as programs print them: by the node's own clock, in the zone of the machine that simulates."""

from __future__ import annotations

import time

__all__ = ["agent", "bracketed", "dashed", "glog", "old_agent", "slurm"]


def glog(at: float) -> str:
    """``1206 18:44:12.715298746``: month not padded, nine digits, no year (c10's logging)."""
    moment = time.localtime(at)
    return f"{moment.tm_mon}{moment.tm_mday:02d} {time.strftime('%H:%M:%S', moment)}.{_fraction(at, 9)}"


def agent(at: float) -> str:
    """``1129 12:29:58.267000``: month padded, milliseconds (torch._logging)."""
    return f"{time.strftime('%m%d %H:%M:%S', time.localtime(at))}.{_fraction(at, 3)}000"


def old_agent(at: float) -> str:
    """``2024-02-01 10:11:12,123`` (Python's logging)."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))},{_fraction(at, 3)}"


def bracketed(at: float) -> str:
    """``[2026-03-13 22:26:02] `` (NCCL from 2.26 on)."""
    return time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(at))


def dashed(at: float) -> str:
    """``2026-08-10_03:05:11``: failure tables of torchelastic."""
    return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(at))


def slurm(at: float) -> str:
    """``2023-03-06T03:17:51``."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def _fraction(at: float, digits: int) -> str:
    return f"{int((at % 1.0) * 10**digits):0{digits}d}"
