"""Where our line goes in a job's comment, and whether the user's own text would survive it.

Outside facts (measured on 22.05, 24.11, 26.05): sacctmgr stores ' and " as backticks, 22.05 stores everything in lower
case, a latin1 database stores what it can't encode as ``?``; scontrol takes at most 1,024 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["LIVE_LIMIT", "Placement", "place", "survives"]

#: scontrol's limit for a comment, in bytes; sacctmgr cuts silently at 65,535.
LIVE_LIMIT = 1024
ACCOUNTED_LIMIT = 65535
#: Ends as `report.line` ends it: a bracket that a user wrote is the user's, and so is another job's line, copied.
_LINE = r"\[nccl-slurm: [^\[\]]{0,300}; report %s( --run [0-9]{1,9})?\]"
_JOB = re.compile(r"; report ([0-9_+]{1,30})( --run [0-9]{1,9})?\]\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Placement:
    """``field`` is ``comment``, ``admincomment`` or None (store only); ``why`` says why not the comment."""

    field: str | None
    text: str = ""
    present: bool = False  # the field holds exactly this already
    why: str = ""


def place(ours: str, comment: str, admin_comment: str, *, lower_cases: bool) -> Placement:
    """For a job that has ended (accounting). ``ours`` is one bracketed line."""
    line = ours.lower() if lower_cases else ours
    if survives(comment, ours, lower_cases=lower_cases):
        return _into("comment", comment, line, ACCOUNTED_LIMIT, "")
    why = "the user's comment would not survive sacctmgr"
    if not _without(ours, admin_comment).strip():
        return _into("admincomment", admin_comment, line, ACCOUNTED_LIMIT, why)
    return Placement(None, why=why + ", and AdminComment is another tool's")


def place_live(ours: str, comment: str) -> Placement:
    """For a job that runs or is pending again (scontrol keeps all characters)."""
    return _into("comment", comment, ours, LIVE_LIMIT, "")


def survives(text: str, ours: str, *, lower_cases: bool) -> bool:
    """Whether sacctmgr gives back the user's part of ``text`` unchanged."""
    user = _without(ours, text)
    if lower_cases and user != user.lower():
        return False
    return not set("'\"") & set(user) and user.isascii()


def _lines_of(ours: str) -> re.Pattern[str]:
    """Those of the job that ``ours`` tells of. Raises ValueError where it tells of none."""
    job = _JOB.search(ours)
    if job is None:
        raise ValueError(f"{ours!r} names no report")
    return re.compile(_LINE % re.escape(job[1]), re.IGNORECASE)


def _without(ours: str, text: str) -> str:
    return _lines_of(ours).sub("", text)


def _into(field: str, text: str, line: str, limit: int, why: str) -> Placement:
    # a function as replacement: the line may hold backslashes
    before = _lines_of(line)
    merged = before.sub(lambda _: line, text, count=1) if before.search(text) else f"{text} {line}" if text else line
    if len(merged.encode("utf-8", "surrogateescape")) > limit:
        return Placement(None, why=f"the user's comment leaves no room below {limit} bytes")
    return Placement(field, merged, merged == text, why)
