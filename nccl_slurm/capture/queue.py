"""The queue of a node's worker: ``SPOOL/queue/VERB.RUN``, one empty file for each thing to do, made by the hooks."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

__all__ = ["FIRST_LOOK_S", "Entry", "done", "entries", "folder"]

#: A job's first snapshot waits as long: most jobs that fail at once are over by then (nccl-slurm-node has it too).
FIRST_LOOK_S = 2.0

_NAME = re.compile(r"(before|finish)\.([0-9]{1,18}\.([0-9]{1,12}))\Z")


class Entry(NamedTuple):
    """``asked``: nanoseconds of the file's own time, which tells a hook that asked again."""

    verb: str
    run: str
    seconds: int
    asked: int

    def due(self, now: float) -> bool:
        """A clock that was set back must not keep a run waiting."""
        return self.verb == "finish" or not 0 <= now - self.seconds < FIRST_LOOK_S


def folder(spool: str) -> str:
    return os.path.join(spool, "queue")


def entries(spool: str) -> list[Entry]:
    """Ends of runs first, each kind oldest first; none where there is no queue."""
    try:
        names = os.listdir(folder(spool))
    except OSError:
        return []
    found = [entry for entry in (_entry(spool, name) for name in names) if entry is not None]
    return sorted(found, key=lambda entry: (entry.verb != "finish", entry.seconds, entry.run))


def _entry(spool: str, name: str) -> Entry | None:
    """None for what is no entry, and for one that an epilog took back while it was looked at."""
    match = _NAME.match(name)
    try:
        asked = os.lstat(os.path.join(folder(spool), name)).st_mtime_ns
    except OSError:
        return None
    return Entry(match.group(1), match.group(2), int(match.group(3)), asked) if match else None


def done(spool: str, entry: Entry) -> None:
    """Leaves the file where a hook asked again meanwhile (the epilog of a run that a reboot had closed). With a run's
    end its first look is over too."""
    path = os.path.join(folder(spool), f"{entry.verb}.{entry.run}")
    with suppress(OSError):
        if os.lstat(path).st_mtime_ns == entry.asked:
            os.unlink(path)
    with suppress(OSError):
        os.unlink(os.path.join(folder(spool), f"before.{entry.run}"))
