"""Versions and settings in which ranks differ from one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_slurm.info.setting import OF_ONE_PROCESS, READ_BY_NCCL, settings
from nccl_slurm.info.split import Split, split
from nccl_slurm.info.teller import Teller, teller
from nccl_slurm.info.version import versions
from nccl_slurm.model import Fact

__all__ = ["NOT_SEEN", "Difference", "differences"]

#: In place of a value: the rank prints its settings, and not this one.
NOT_SEEN = "not seen"

_Said = list[tuple[Teller, str, Fact]]


@dataclass(frozen=True)
class Difference:
    """``kind``: version or setting. ``facts``: the line of each teller, odd ones first."""

    kind: str
    name: str
    split: Split
    facts: Sequence[Fact]


def differences(facts: Sequence[Fact], *, whole: bool = True) -> list[Difference]:
    """Versions first, each sorted by name. Lines that tell neither rank nor host can't be compared.

    ``whole``: no line of settings was left out by the parser; else an absent one means nothing.
    """
    listing = _listing(facts) if whole else set()
    found = [*_grouped("version", versions(facts), ()), *_grouped("setting", settings(facts), listing)]
    return sorted(found, key=lambda one: (one.kind != "version", not one.split.odd, one.name))


def _listing(facts: Iterable[Fact]) -> set[Teller]:
    """Who prints its settings as NCCL reads them."""
    return {who for fact in facts if fact.kind == READ_BY_NCCL and (who := teller(fact)) is not None}


def _grouped(kind: str, said: Iterable[tuple[str, str, Fact]], listing: Iterable[Teller]) -> list[Difference]:
    by_name: dict[str, _Said] = {}
    for name, value, fact in said:
        who = teller(fact)
        if who is not None and name not in OF_ONE_PROCESS:
            by_name.setdefault(name, []).append((who, value, fact))
    told_of = set(listing)
    made = (_difference(kind, name, words, told_of) for name, words in by_name.items())
    return [one for one in made if one is not None]


def _difference(kind: str, name: str, words: _Said, listing: set[Teller]) -> Difference | None:
    absent = _absent(words, listing) if listing else []
    if not absent and len({value for _, value, _ in words}) == 1:
        return None
    found = split([*((who, value) for who, value, _ in words), *absent])
    if found is None:
        return None
    odd = set(found.odd)
    first: dict[Teller, Fact] = {}
    for who, _, fact in words:
        first.setdefault(who, fact)
    ordered = sorted(first.items(), key=lambda item: item[0] not in odd)
    return Difference(kind, name, found, [fact for _, fact in ordered])


def _absent(words: _Said, listing: set[Teller]) -> list[tuple[Teller, str]]:
    """Ranks that print settings without this one, where they are few: NCCL reads some on one rank alone."""
    without = listing - {who for who, _, _ in words}
    if not without:
        return []
    told = {who for who, _, fact in words if fact.kind == READ_BY_NCCL}
    return [(who, NOT_SEEN) for who in without] if len(without) < len(told) else []
