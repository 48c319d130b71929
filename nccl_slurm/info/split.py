"""Tellers that don't agree about one thing, and which of them are the odd ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nccl_slurm.info.teller import Teller

__all__ = ["Split", "split"]

#: So many must say the same before those who don't are called odd: of two that differ nobody is.
AGREE_MIN = 2


@dataclass(frozen=True)
class Split:
    """``values``: what was said → by whom, the most frequent first. At least two values."""

    values: Mapping[str, tuple[Teller, ...]]

    @property
    def odd(self) -> tuple[Teller, ...]:
        """Those who differ from more than half of all; empty where no value has such a majority."""
        groups = list(self.values.values())
        most, rest = groups[0], [one for group in groups[1:] for one in group]
        return tuple(rest) if len(most) >= AGREE_MIN and len(most) > len(rest) else ()


def split(said: Iterable[tuple[Teller, str]]) -> Split | None:
    """None where all agree. Who says two things at once is not counted: which of them holds is not known."""
    own: dict[Teller, set[str]] = {}
    for who, value in said:
        own.setdefault(who, set()).add(value)
    groups: dict[str, list[Teller]] = {}
    for who, values in own.items():
        if len(values) == 1:
            groups.setdefault(next(iter(values)), []).append(who)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return Split({value: tuple(sorted(who, key=_order)) for value, who in ordered})


def _order(who: Teller) -> tuple[bool, int, str]:
    return (False, who, "") if isinstance(who, int) else (True, 0, who)
