"""How often something changes, by looks at it: since when it is as it is, and the longest pause before. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["FACTOR", "Mark", "Pace"]

#: So many times the longest pause that was seen before is no pause any more.
FACTOR = 3.0
#: A first change may end a pause that began long before the first look: the second one shows a rhythm.
RHYTHM_MIN = 2


class Mark(NamedTuple):
    """``value``: equal as long as nothing changed. ``age_s``: since the last change, by a file's time, where known."""

    value: object
    age_s: float | None = None


@dataclass
class _Sign:
    value: object
    since: float
    changes: int = 0
    longest_s: float = 0.0


@dataclass
class Pace:
    """Marks by key. A key that is not seen in a look stays as it was: nothing was observed of it."""

    _signs: dict[Hashable, _Sign] = field(default_factory=dict)

    def see(self, at: float, marks: Mapping[Hashable, Mark]) -> None:
        for key, mark in marks.items():
            since = at - max(0.0, mark.age_s or 0.0)
            sign = self._signs.get(key)
            if sign is None:
                self._signs[key] = _Sign(mark.value, since)
            elif sign.value != mark.value:
                since = max(since, sign.since)
                sign.longest_s = max(sign.longest_s, since - sign.since)
                sign.value, sign.since = mark.value, since
                sign.changes += 1

    def forget(self, key: Hashable) -> None:
        self._signs.pop(key, None)

    def knows(self, key: Hashable) -> bool:
        return key in self._signs

    def quiet_s(self, key: Hashable, at: float) -> float:
        return at - self._signs[key].since

    def changed(self, key: Hashable) -> bool:
        return self._signs[key].changes > 0

    def with_rhythm(self, keys: Iterable[Hashable]) -> list[Hashable]:
        return [key for key in keys if key in self._signs and self._signs[key].changes >= RHYTHM_MIN]

    def longest_s(self, keys: Iterable[Hashable]) -> float | None:
        """The longest pause of those with a rhythm; None where there are none."""
        return max((self._signs[key].longest_s for key in self.with_rhythm(keys)), default=None)

    def too_long_s(self, keys: Iterable[Hashable], floor_s: float) -> float:
        """Silence of this length is out of the rhythm of these, and no shorter than ``floor_s``."""
        return max(floor_s, FACTOR * (self.longest_s(keys) or 0.0))
