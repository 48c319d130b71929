"""How far this node's clock is off, as chronyd or systemd knows it: orders of events across nodes rest on it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

from nccl_slurm.capture import command, spool
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

__all__ = ["chrony", "kept", "measure", "timedate"]

_LIMIT_S = 5.0
#: A daemon that keeps a clock looks at it about as often. timedatectl starts a service of systemd's for its answer.
_KEPT_S = 60.0


def kept(conf: Conf, gaps: list[Gap]) -> dict[str, Any]:
    """The record's ``clock``, which the first of a minute's runs on this node measures for all."""
    path = os.path.join(conf.spool, "clock.json")
    stored = _stored(path)
    if stored is None:
        own: list[Gap] = []
        stored = {"clock": measure(own), "gaps": [{"source": one.source, "why": one.why} for one in own]}
        with suppress(OSError):
            spool.write_whole(path, stored)
    gaps += [Gap(one["source"], one["why"]) for one in stored["gaps"]]
    return dict(stored["clock"])


def _stored(path: str) -> dict[str, Any] | None:
    """None where there is none, where it is old, and where the clock was set back behind it."""
    try:
        with open(path, encoding="ascii") as file:
            if 0.0 <= time.time() - os.fstat(file.fileno()).st_mtime < _KEPT_S:
                value = json.load(file)
                return value if isinstance(value, dict) and set(value) == {"clock", "gaps"} else None
    except (OSError, ValueError):
        pass
    return None


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
