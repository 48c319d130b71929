"""The facts of a run by sort, so that a rule looks at those alone that it is about.

A run of 16,384 ranks has 280,000 facts of some twenty sorts. Each rule that went through all of them cost 20 to 60 ms,
and there are sixty such questions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter

from nccl_slurm.model import Fact

__all__ = ["Sorts"]

#: Keys of a fact's data by which facts of many sorts are looked for.
_KEYS = ("attempt", "gathered_of", "local_rank", "raised_at", "task", "timeout_ms")
_ANY_KEY = frozenset(_KEYS)
_DATA = attrgetter("data")
_SORT = attrgetter("kind", "producer", "role", "hint", "trust")


class Sorts:
    """``facts``: in the order of the run. Facts of one sort have kind, producer, role, hint and trust in common."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._facts = facts
        places: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        for place, sort in enumerate(map(_SORT, facts)):
            places[sort].append(place)
        having: dict[str, list[int]] = {key: [] for key in _KEYS}
        for place, data in enumerate(map(_DATA, facts)):
            if not _ANY_KEY.isdisjoint(data):
                for key in _KEYS:
                    if key in data:
                        having[key].append(place)
        self._places, self._having = list(places.values()), having

    def where(self, wanted: Callable[[Fact], bool]) -> list[Fact]:
        """In the order of the run. ``wanted`` is asked once a sort: it may look at what a sort has in common alone."""
        return self._at(self._chosen(wanted))

    def having(self, *keys: str, wanted: Callable[[Fact], bool] | None = None) -> list[Fact]:
        """Those with one of these keys (of `_KEYS`) in their data, and ``wanted`` sorts; in the order of the run."""
        chosen = self._chosen(wanted) if wanted is not None else []
        return self._at([*chosen, *(self._having[key] for key in keys)])

    def _chosen(self, wanted: Callable[[Fact], bool]) -> list[list[int]]:
        return [places for places in self._places if wanted(self._facts[places[0]])]

    def _at(self, chosen: Sequence[Iterable[int]]) -> list[Fact]:
        ordered = chosen[0] if len(chosen) == 1 else sorted(set(chain.from_iterable(chosen)))
        return [self._facts[place] for place in ordered]

    def of_kind(self, *kinds: str) -> list[Fact]:
        """In the order of the run."""
        return self.where(lambda fact: fact.kind in kinds)

    def any(self, wanted: Callable[[Fact], bool]) -> bool:
        """Whether there is such a sort."""
        return any(wanted(self._facts[places[0]]) for places in self._places)

    def of(self, facts: Sequence[Fact]) -> Sorts:
        """The same with ``facts`` for these: as many, in this order, alike but for ranks and attempts."""
        if facts is self._facts:
            return self
        other = Sorts(())
        other._facts, other._places, other._having = facts, self._places, self._having
        return other
