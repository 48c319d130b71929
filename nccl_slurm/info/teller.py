"""Who printed a line: a rank, or where no rank is known the host of the line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.model import Fact

__all__ = ["Teller", "teller", "told"]

#: A global rank, or a host's name.
Teller = int | str


def teller(fact: Fact) -> Teller | None:
    return fact.rank if fact.rank is not None else fact.host or None


def told(tellers: Iterable[Teller], hosts: Mapping[int, str] | None = None) -> str:
    """``rank 7 (n2)``, ``ranks 0-6``, ``n[1-3]``. ``hosts``: rank → host; shown where all ranks are of one."""
    known = set(tellers)
    ranks = [one for one in known if isinstance(one, int)]
    names = [one for one in known if isinstance(one, str)]
    parts = [f"rank{'s' if len(ranks) > 1 else ''} {fold_numbers(ranks)}{_where(ranks, hosts or {})}"] if ranks else []
    return " and ".join([*parts, fold(names)] if names else parts)


def _where(ranks: list[int], hosts: Mapping[int, str]) -> str:
    found = {hosts.get(rank) for rank in ranks}
    host = found.pop() if len(found) == 1 else None
    return f" ({fold([host])})" if host else ""
