"""Recommendations, and the runs behind them, after what happened since, to their machines or to others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from nccl_slurm.history.machine import Machine
from nccl_slurm.history.rows import RecommendationRow
from nccl_slurm.model import Recommendation
from nccl_slurm.recommend.step import HEAVY
from nccl_slurm.recommend.tried import silent, unreturned
from nccl_slurm.review.queue import Change

__all__ = ["OF_THE_SITE", "beside", "due_again", "handed_over", "overtaken", "stayed_away"]

#: Rules of the guards that speak of several nodes at once.
OF_THE_SITE = ("ladder.site-event", "ladder.fleet", "ladder.not-returning")


def due_again(active: Sequence[RecommendationRow], allowed: int) -> list[RecommendationRow]:
    """Those that wait for room below the fleet's cap, oldest first, as many as there is room for now."""
    room = allowed - len({row.node for row in active if row.action in HEAVY})
    waiting = [row for row in active if row.rule == "ladder.queued" and row.state == "open"]
    return waiting[: max(room, 0)]


def handed_over(
    active: Iterable[RecommendationRow], identity_of: Callable[[str], str | None], now: float
) -> list[Change]:
    """Of machines that no longer have the name that the commands are for: replaced, renamed, taken out of Slurm.
    ``identity_of``: node name → the machine that has it now, None where that is not known, empty for no node."""
    changes: list[Change] = []
    for row in active:
        if identity_of(row.node) not in (None, row.identity):
            state = "done" if row.state == "accepted" else "withdrawn"
            changes.append((replace(row, state=state, changed=now), state))
    return changes


def overtaken(
    active: Iterable[RecommendationRow], machine_of: Callable[[str, float], Machine | None]
) -> list[RecommendationRow]:
    """Open ones whose machine was booted or replaced since by somebody who did not ask us, or is a controller now.
    ``machine_of``: identity and time → the machine with its events since then."""
    return [row for row in active if row.state == "open" and row.action in HEAVY and _touched(row, machine_of)]


def _touched(row: RecommendationRow, machine_of: Callable[[str, float], Machine | None]) -> bool:
    machine = machine_of(row.identity, row.changed)
    if machine is None:
        return False
    return machine.role == "controller" or any(event.kind in ("boot", "replaced") for event in machine.events)


def stayed_away(
    active: Iterable[RecommendationRow], machine_of: Callable[[str, float], Machine | None], before: float
) -> list[RecommendationRow]:
    """Reboots after which the machine has been silent since before then, by when no boot is under way any more."""
    asked = (row for row in active if row.state in ("open", "accepted") and row.action in HEAVY)
    return [row for row in asked if _is_away(machine_of(row.identity, row.changed), row.changed, before)]


def _is_away(machine: Machine | None, since: float, before: float) -> bool:
    lost = unreturned(machine, since) if machine is not None else None
    return machine is not None and lost is not None and lost.time <= before and silent(machine, lost)


def beside(
    active: Iterable[RecommendationRow], found: Iterable[Recommendation], failure_class: str
) -> list[RecommendationRow]:
    """Where a verdict shows an event of the site: what earlier nodes of it were asked for, while they still looked like
    single ones."""
    if not any(one.rule in OF_THE_SITE for one in found):
        return []
    return [row for row in active if row.state == "open" and row.action in HEAVY and row.failure_class == failure_class]
