"""Time stamps of log lines → seconds since 1970 UTC and their uncertainty.

Most logs carry no zone, torch's and syslog's not even a year. A stamp without zone is read in the zone of this machine:
right on the node that wrote it, off by a whole zone for a container that runs in another. That error is the same for
every line of one producer, so times without zone must be compared only within one producer; `Stamp.zoned` tells them
apart. ``uncertainty_s`` is the resolution of the stamp alone.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from functools import lru_cache
from typing import Match, NamedTuple

__all__ = ["Stamp", "find"]


class Stamp(NamedTuple):
    seconds: float
    uncertainty_s: float
    zoned: bool
    dated: bool = True  # the year was printed

    @property
    def clock(self) -> str:
        """Whose time it is: ``utc``, ``local`` (a zone is not printed), ``local, year guessed``."""
        if self.zoned:
            return "utc"
        return "local" if self.dated else "local, year guessed"


_DAY = 86_400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
#: In every clock, and of all its parts the one that is found soonest: a regex that begins with a literal.
_ANY = re.compile(r":\d\d:\d\d")
_ISO = re.compile(
    r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _-]"
    + _CLOCK
    + r"(?:[.,](?P<fraction>\d{1,9}))?(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d))?"
)
# glog style: [E1206 18:44:12.715298746 of torch's C++ (month not padded) and E0612 01:14:57.061000 of its Python side
_GLOG = re.compile(r"(?:^|[^A-Za-z0-9])[DIWEFC](?P<month>\d{1,2})(?P<day>\d\d) " + _CLOCK + r"\.(?P<fraction>\d{1,9})")
_DMESG = re.compile(
    r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) " + _CLOCK + r" (?P<year>\d{4})\]"
)
_SYSLOG = re.compile(
    r"(?:^|[^\w])(?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) " + _CLOCK + r"(?:\.(?P<fraction>\d{1,9}))?(?= )"
)
# journalctl -o short-unix, libfabric's "libfabric:PID:SECONDS:", fluent-bit's "date"
_EPOCH = re.compile(
    r"(?:\A|\blibfabric:\d{1,10}:)(?P<whole>1\d{9})(?:\.(?P<fraction>\d{1,9}))?"
    r"(?=\Z|:| [A-Za-z0-9][\w.-]{0,254} kernel: )"
)


def find(text: str, now: float) -> Stamp | None:
    """The first time stamp in the first 400 characters. ``now`` gives the year where the text has none."""
    head = text[:400]
    epoch = _EPOCH.search(head) if head[:1] == "1" or "libfabric:" in head else None
    if epoch is not None:
        fraction = epoch.group("fraction") or ""
        return Stamp(float(epoch.group("whole") + "." + (fraction or "0")), _resolution(fraction), True)
    if _ANY.search(head) is None:  # cheaper than four searches that find nothing
        return None
    for form in (_GLOG, _ISO, _DMESG, _SYSLOG):
        match = form.search(head)
        if match is not None:
            stamp = _stamp(match, now)
            if stamp is not None:
                return stamp
    return None


def _stamp(match: Match[str], now: float) -> Stamp | None:
    part = match.groupdict()
    month = _month(part)
    if month is None:
        return None
    fraction = part.get("fraction") or ""
    clock = (int(part["day"]), int(part["hour"]), int(part["minute"]), int(part["second"]))
    year, zone = part.get("year"), part.get("zone")
    whole = _seconds(int(year), month, clock, zone) if year else _nearest_year(month, clock, now)
    if whole is None:
        return None
    seconds = whole + (float("0." + fraction) if fraction else 0.0)
    return Stamp(seconds, _resolution(fraction), zone is not None, year is not None)


def _resolution(fraction: str) -> float:
    """Of a stamp with so many digits after the second; a microsecond at best, that is what a float holds."""
    return 10.0 ** -min(len(fraction), 6)


def _month(part: dict[str, str]) -> int | None:
    if part.get("name"):
        return _MONTHS.index(part["name"]) + 1 if part["name"] in _MONTHS else None
    month = int(part["month"])
    return month if 1 <= month <= 12 else None


def _nearest_year(month: int, clock: tuple[int, int, int, int], now: float) -> float | None:
    """The last such date that is not more than a day in the future."""
    this = time.gmtime(now).tm_year
    for year in range(this + 1, this - 5, -1):
        seconds = _seconds(year, month, clock, None)
        if seconds is not None and seconds <= now + _DAY:
            return seconds
    return None


@lru_cache(maxsize=256)  # mktime costs 3 µs, and lines of one second come together
def _seconds(year: int, month: int, clock: tuple[int, int, int, int], zone: str | None) -> float | None:
    day, hour, minute, second = clock
    if not (1970 <= year <= 9999 and 1 <= day <= _days(year, month) and hour < 24 and minute < 60 and second < 61):
        return None
    if zone is not None:
        return float(timegm((year, month, day, hour, minute, second)) - _offset(zone))
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def _days(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def _offset(zone: str) -> int:
    """``+02:00`` or ``+0200`` → seconds east of Greenwich."""
    if zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
