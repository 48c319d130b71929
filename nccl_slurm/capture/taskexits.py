"""``root/task_exits``: how each task of the run ended on this node, as the SPANK plugin (`slurm/spank`) wrote it.

Root's own file: what is in it is Slurm's word. Times are those at which slurmstepd saw the end.
"""

from __future__ import annotations

import os
import re
from typing import Any

from nccl_slurm.capture.spool import Run
from nccl_slurm.model import Gap

__all__ = ["GAP", "NAME", "task_exits"]

NAME = "task_exits"
#: Source of the gaps.
GAP = "task exits"
#: The plugin stops a line short of this.
_FILE_BYTES = 8 << 20
_LINE_BYTES = 256
_MAX = 100_000
_LINE = re.compile(
    rb"step=(?P<step>\d{1,10}|batch|extern|interactive) task=(?P<task>\d{1,8}) local=\d{1,8} pid=(?P<pid>-?\d{1,10})"
    rb" status=(?P<status>\d{1,5}) exit=\d{1,3} signal=\d{1,3} start=(?P<start>\d{1,19}) end=(?P<end>\d{1,19})\n\Z"
)


def task_exits(run: Run, gaps: list[Gap]) -> list[dict[str, Any]]:
    """In the order in which they were seen, in the record's shape. Raises OSError where the file can't be read."""
    try:
        with open(run.root(NAME), "rb") as file:
            raw, size = file.read(_FILE_BYTES), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        gaps.append(Gap(GAP, "no SPANK plugin reports how each task ended"))
        return []
    lines = raw.splitlines(keepends=True)
    found = [one for one in map(_exit, lines) if one is not None]
    if len(found) < len(lines):
        gaps.append(Gap(GAP, f"{len(lines) - len(found)} lines are cut or malformed"))
    if size + _LINE_BYTES > _FILE_BYTES or len(found) > _MAX:
        gaps.append(Gap(GAP, f"more tasks ended here than are kept ({min(len(found), _MAX)})"))
    return found[:_MAX]


def _exit(line: bytes) -> dict[str, Any] | None:
    match = _LINE.match(line)
    if match is None:
        return None
    pid, start, end = (int(match[key]) for key in ("pid", "start", "end"))
    return {
        "rank": int(match["task"]),
        "exit": _code(int(match["status"])),
        "pid": pid if pid > 0 else None,
        "time": end / 1e9 if end else None,
        "start": start / 1e9 if start else None,
        "step": str(match["step"], "ascii"),
    }


def _code(status: int) -> int:
    """wait(2)'s status as Python's subprocess has it: an exit code, or minus the signal."""
    signal = status & 0x7F
    return -signal if signal else status >> 8 & 0xFF
