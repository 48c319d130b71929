"""What a person says to a recommendation, and who that is. Nothing is carried out here."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nccl_slurm.errors import InputError
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import AuditRow, RecommendationRow

__all__ = ["Person", "accept", "decline", "event", "line", "person", "snooze"]

#: A snooze beyond this is a decline that nobody wrote down.
LONGEST_SNOOZE_S = 90 * 86400.0


@dataclass(frozen=True)
class Person:
    """The real user of the process; ``sudo_user`` is sudo's word, believed of those alone who may write what they like
    into the store: root, and the daemon's user (``sudo -u slurm``)."""

    user: str
    uid: int
    sudo_user: str | None
    host: str

    @property
    def shown(self) -> str:
        return f"{self.user} (sudo: {self.sudo_user})" if self.sudo_user else self.user


def person(environment: Mapping[str, str] = os.environ, daemon_uid: int | None = None) -> Person:
    uid = os.getuid()
    sudo = environment.get("SUDO_USER") or None
    return Person(_name(uid), uid, sudo[:255] if sudo and uid in (0, daemon_uid) else None, socket.gethostname()[:255])


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def accept(row: RecommendationRow, who: Person, note: str, now: float) -> RecommendationRow:
    """Raises InputError where it is closed already."""
    return _decided(row, who, note, now, state="accepted", until=None)


def decline(row: RecommendationRow, who: Person, note: str, now: float) -> RecommendationRow:
    return _decided(row, who, note, now, state="declined", until=None)


def snooze(row: RecommendationRow, who: Person, note: str, now: float, seconds: float) -> RecommendationRow:
    if seconds > LONGEST_SNOOZE_S:
        raise InputError(f"a snooze of {seconds / 86400:.0f} days; 90d is the most, --decline ends it for good")
    return _decided(row, who, note, now, state="snoozed", until=now + seconds)


def line(row: RecommendationRow, who: Person, at: float) -> AuditRow:
    return AuditRow(at, who.user, who.uid, who.sudo_user, who.host, row.state, row.number, row.node, row.note)


def event(row: RecommendationRow) -> MachineEvent:
    """The decision as a part of the machine's past."""
    data = {"action": row.action, "rule": row.rule, "by": row.by, "note": row.note}
    return MachineEvent(row.decided or 0.0, "action", row.state, "review", f"{row.action} {row.state}", data=data)


def _decided(
    row: RecommendationRow, who: Person, note: str, now: float, *, state: str, until: float | None
) -> RecommendationRow:
    if row.state not in ("open", "snoozed"):
        by = f" by {row.by}" if row.by else ""
        raise InputError(f"recommendation {row.number} is {row.state}{by}; `nccl-slurm review` lists what is open")
    return replace(row, state=state, until=until, by=who.shown, decided=now, changed=now, note=note)
