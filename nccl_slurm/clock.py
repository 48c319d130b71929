"""A clock that tests can move, and the two forms of time: seconds since 1970 UTC in code, RFC 3339 UTC outside."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol

__all__ = ["Clock", "MovableClock", "SystemClock", "rfc3339"]


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970 UTC."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class MovableClock:
    """Stands still until it is moved; ``sleep`` moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def rfc3339(seconds: float | None) -> str | None:
    """``2026-11-29T12:39:15.334Z``; None stays None. Millisecond resolution."""
    if seconds is None:
        return None
    at = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
