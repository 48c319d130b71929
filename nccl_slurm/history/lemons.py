"""Which machines lose more runs than their peers: the blame test over all of them, for one look at ``now``.

Why the test is right is in docs/thresholds.md. What it flags earns a look at the machine, never more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.history.losses import Pool, Tally, Worked, tally_of
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.statistics import Part, adjusted, attained, tail
from nccl_slurm.history.thresholds import DAY, Thresholds

__all__ = ["Period", "Stage", "Suspicion", "blame", "excluded", "flagged", "period_of", "suspicions"]


@dataclass(frozen=True)
class Period:
    """The look at ``now`` is one of those from ``start`` on that share an error budget; evidence counts from ``begin``.

    Seconds since 1970 UTC. ``ends``: of its stages.
    """

    begin: float
    start: float
    ends: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """Evidence up to a stage's end or up to now. ``growth``: how much time the whole stage has, as a multiple of the
    time until now; 1.0 where it has ended.
    """

    tally: Tally
    growth: float = 1.0
    growths: Mapping[str, float] | None = None  # of machines that came later than the evidence begins

    def growth_of(self, name: str) -> float:
        return (self.growths or {}).get(name, self.growth)


@dataclass(frozen=True)
class Suspicion:
    """``evidence``: lost runs, by their parts; ``expected``: as many, if this machine were like its peers; ``chance``:
    of so much evidence or more on a machine like its peers, daily looks allowed for; ``q``: `adjusted` over all.
    """

    identity: str
    node: str
    hours: float
    evidence: float
    expected: float
    chance: float
    q: float
    flagged: bool

    @property
    def action(self) -> str:
        """Statistics alone never say more: a reboot or a replacement needs evidence of the hardware."""
        return "investigate" if self.flagged else "none"


def suspicions(machines: Iterable[Machine], now: float, thresholds: Thresholds) -> tuple[Suspicion, ...]:
    """One a machine that worked, the most suspicious first. Empty where nothing was observed.

    ``machines`` may be read a batch at a time: none is kept.
    """
    worked = [Worked(machine, thresholds) for machine in machines]
    first = min((one.seen_first for one in worked if one.seen_first is not None), default=None)
    if first is None or first > now:
        return ()
    period = period_of(first, now, thresholds)
    found = blame([_stage(worked, end, period, now, thresholds) for end in period.ends], thresholds)
    nodes = {one.identity: one.node for one in worked}
    named = (replace(one, node=nodes[one.identity]) for one in found)
    return tuple(sorted(named, key=lambda one: (one.chance, -one.evidence, one.expected, one.node)))


def excluded(found: Sequence[Suspicion], thresholds: Thresholds) -> tuple[tuple[Suspicion, ...], tuple[Suspicion, ...]]:
    """Of `suspicions`: those for an exclude list, and those that are flagged too but would make it too long."""
    most = max(int(thresholds["exclude.nodes"]), int(thresholds["exclude.share"] * len(found)))
    flags = tuple(one for one in found if one.flagged)
    return flags[:most], flags[most:]


def period_of(first: float, now: float, thresholds: Thresholds) -> Period:
    """``first``: when the first machine was seen; periods are counted from there on."""
    length = thresholds["blame.period_d"] * DAY
    start = first + max(0.0, (now - first) // length) * length
    return Period(max(first, start - length), start, (start + thresholds["blame.stage_d"] * DAY, start + length))


def blame(stages: Sequence[Stage], thresholds: Thresholds) -> list[Suspicion]:
    """Each machine by the stage that speaks most against it. The last stage has all evidence until now."""
    peers, chances = _judged(stages, thresholds)
    q = adjusted(list(chances.values()))
    return [_told(peers[-1], *each, thresholds) for each in zip(chances, chances.values(), q, strict=True)]


def flagged(stages: Sequence[Stage], thresholds: Thresholds) -> frozenset[str]:
    """Identities alone."""
    return _below(_judged(stages, thresholds)[1], thresholds["blame.fdr"])


def _judged(stages: Sequence[Stage], thresholds: Thresholds) -> tuple[list[_Peers], dict[str, float]]:
    """The chance of each machine's evidence, beside peers without those that are most suspicious themselves."""
    names = sorted(name for name, hours in stages[-1].tally.hours.items() if any(hours.values()))
    out: frozenset[str] = frozenset()
    while True:
        peers = [_Peers(stage, out, 1.0 + 4.0 * thresholds["blame.trim"]) for stage in stages]
        rarest = {name: _rarest(peers, name, thresholds) for name in names}
        more = frozenset(name for name in names if rarest[name] <= thresholds["blame.trim"])
        if more <= out:
            break
        out |= more
    weights = _weights(thresholds)
    # the others can't be flagged, and an exact chance takes milliseconds
    near = _below({name: value * min(weights) for name, value in rarest.items()}, thresholds["blame.fdr"])
    return peers, {name: _chance(peers, name, value, weights, name in near) for name, value in rarest.items()}


def _below(chances: Mapping[str, float], level: float) -> frozenset[str]:
    q = adjusted(list(chances.values()))
    return frozenset(name for name, value in zip(chances, q, strict=True) if value <= level)


class _Peers:
    """What the machines of a stage are compared with: the peers that are not flagged, and itself."""

    def __init__(self, stage: Stage, out: frozenset[str], more: float) -> None:
        """``more``: those who are out took so many times the losses with them, if nobody is a lemon."""
        self.stage, self._more = stage, more
        self._pool = stage.tally.pool(out)
        hours = stage.tally.hours
        self._own = {
            name: self._pool.joined_by(hours.get(name, {}), losses) for name, losses in stage.tally.against(out).items()
        }

    def of(self, name: str) -> Pool:
        return self._own.get(name, self._pool)

    def parts(self, name: str) -> tuple[Part, ...]:
        """For all that the stage will have seen in its end: what was seen until now can only grow."""
        hours = self.stage.tally.hours.get(name, {})
        return self.of(name).parts(name, hours, self.stage.growth, self.stage.growth_of(name) * self._more)


def _weights(thresholds: Thresholds) -> tuple[float, float]:
    """How rare, beside the first stage's, evidence of each stage must be to count as much."""
    return 1.0, thresholds["blame.second"]


def _rarest(stages: Sequence[_Peers], name: str, thresholds: Thresholds) -> float:
    """The least tail of all stages, each by its weight."""
    if all(peers.of(name).evidence(name) < thresholds["blame.least"] for peers in stages):
        return 1.0
    weighted = zip(stages, _weights(thresholds), strict=True)
    return min(1.0, *(tail(peers.parts(name)) / weight for peers, weight in weighted))


def _chance(stages: Sequence[_Peers], name: str, rarest: float, weights: Sequence[float], exact: bool) -> float:
    """That any stage of a machine like its peers gets as rare: the sum over stages, or a bound of it."""
    if not exact:
        return min(1.0, rarest * math.fsum(weights))
    parts = ((peers.parts(name), weight) for peers, weight in zip(stages, weights, strict=True))
    tails = (t if (t := tail(one)) / weight == rarest else attained(one, rarest * weight) for one, weight in parts)
    return min(1.0, math.fsum(tails))


def _told(peers: _Peers, name: str, chance: float, q: float, thresholds: Thresholds) -> Suspicion:
    hours, pool = peers.stage.tally.hours[name], peers.of(name)
    expected = math.fsum(part.trials * part.chance / part.of for part in pool.parts(name, hours))
    evidence, is_flagged = pool.evidence(name), q <= thresholds["blame.fdr"]
    return Suspicion(name, name, sum(hours.values()), evidence, expected, chance, q, is_flagged)


def _stage(worked: Sequence[Worked], end: float, period: Period, now: float, thresholds: Thresholds) -> Stage:
    until = min(end, now)
    growths = {
        one.identity: _growth(one.seen_first, until, end)
        for one in worked
        if one.seen_first is not None and period.begin < one.seen_first <= until
    }
    return Stage(tally_of(worked, period.begin, until, thresholds), _growth(period.begin, until, end), growths)


def _growth(begin: float, until: float, end: float) -> float:
    """At least a day is taken as seen: what one hour shows is no rate."""
    return max(1.0, (end - begin) / max(until - begin, min(DAY, end - begin)))
