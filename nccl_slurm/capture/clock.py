"""How far this node's clock is off, as chronyd or systemd knows it: orders of events across nodes rest on it."""

from __future__ import annotations

from typing import Any

from nccl_slurm.capture import command
from nccl_slurm.model import Gap

__all__ = ["chrony", "measure", "timedate"]

_LIMIT_S = 5.0


def measure(gaps: list[Gap]) -> dict[str, Any]:
    """The record's ``clock``. timedatectl knows only whether the clock is kept, not its offset."""
    tracking = command.run(["chronyc", "-n", "-c", "tracking"], limit_s=_LIMIT_S)
    found = chrony(tracking.text) if tracking.why is None else None
    if found is None:
        shown = command.run(["timedatectl", "show", "-p", "NTPSynchronized"], limit_s=_LIMIT_S)
        found = timedate(shown.text) if shown.why is None else None
        if found is None:
            gaps.append(Gap("clock", f"{tracking.why or 'chronyc: no tracking data'}; {shown.why or 'timedatectl: -'}"))
        else:
            gaps.append(Gap("clock offset", "no chronyd here; timedatectl tells no offset"))
    return found or {"source": "unknown", "offset_s": None, "synchronized": None}


def chrony(text: str) -> dict[str, Any] | None:
    """One CSV line of ``chronyc -c tracking``: the fifth field is the offset from NTP time in seconds, the last the
    leap status (``Not synchronised`` where there is no source)."""
    fields = text.strip().split(",")
    if len(fields) < 14:
        return None
    try:
        offset = float(fields[4])
    except ValueError:
        return None
    kept = fields[-1].strip() != "Not synchronised"
    return {"source": "chronyc", "offset_s": offset if kept and abs(offset) < 1e9 else None, "synchronized": kept}


def timedate(text: str) -> dict[str, Any] | None:
    value = text.strip().partition("NTPSynchronized=")[2]
    if value not in ("yes", "no"):
        return None
    return {"source": "timedatectl", "offset_s": None, "synchronized": value == "yes"}
