"""A clock that leapt ahead, and whether to believe it: what is old by it is forgotten for good, or expires.

A daemon that was away for weeks sees the same as one whose clock is wrong until time synchronisation mends it. Waiting
costs nothing where things are kept for years.
"""

from __future__ import annotations

from nccl_slurm.history.store import Store

__all__ = ["HELD_S", "JUMP_S", "Jumps"]

#: So much between two looks is no pause of the daemon's. What a clock that is less ahead forgets was due within a day.
JUMP_S = 86400.0
#: So long a clock that leapt must go on before it is believed.
HELD_S = 86400.0
_AT, _BEFORE = "clock-jumped", "clock-before-jump"


class Jumps:
    """Kept in the store: the daemon may start anew while its clock is wrong."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest = store.value("heartbeat")
        self._at = store.value(_AT) or None
        self._before = store.value(_BEFORE) or 0

    def see(self, now: float) -> bool:
        """At each look; True where the clock has just leapt."""
        latest, self._latest = self._latest, int(now)
        leapt = latest is not None and now - latest > JUMP_S
        if self._at is not None and (now < self._at or (now - self._at >= HELD_S and not leapt)):
            self._keep(None, 0)
        elif leapt:
            self._keep(int(now), self._before if self._at is not None else int(latest or 0))
        return leapt

    def believed(self, now: float) -> float:
        """Now, or, until the clock is believed, the last moment before it leapt."""
        return now if self._at is None else float(self._before)

    @property
    def held(self) -> bool:
        return self._at is not None

    def _keep(self, at: int | None, before: int) -> None:
        self._at, self._before = at, before
        self._store.set_value(_AT, at or 0)
        self._store.set_value(_BEFORE, before)
