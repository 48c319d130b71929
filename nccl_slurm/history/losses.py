"""From machines to evidence: how long each one worked in runs of which size, and which lost runs speak against it.

A lost run speaks against a machine by 1 where its verdict proved this machine, else by 1/n to each of its n machines:
that it was there. What a program, a user or the site did speaks against nobody.
"""

from __future__ import annotations

import math
import re
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.statistics import GRID, Part, bucket
from nccl_slurm.history.thresholds import Thresholds

__all__ = ["Kind", "Loss", "Pool", "Tally", "Worked", "run_size", "runs_counted", "speaks_of_machine", "tally_of"]

#: (size of the run, how many machines its loss may be of), both rounded up to a power of two. Good runs are longer or
#: shorter, and verdicts name more or less often, with the size: like is compared with like.
Kind = tuple[int, int]
_HOUR = 3600.0
_NODES_MAX = 65_536
_PART = re.compile(r"[_+].*")


@dataclass(frozen=True)
class Loss:
    """``blamed``: identities that it speaks against, each by 1 / ``of``.

    ``lineage``: whose run it was, where no verdict names a machine: one owner's failures are alike.
    """

    time: float
    size: int
    blamed: tuple[str, ...]
    of: int
    lineage: str = ""

    @property
    def kind(self) -> Kind:
        return bucket(self.size), bucket(self.of)


@dataclass
class Tally:
    """``hours``: machine → size of runs, rounded up to a power of two → hours worked in such runs."""

    hours: Mapping[str, Mapping[int, float]]
    losses: Sequence[Loss] = ()

    def pool(self, without: frozenset[str] = frozenset()) -> Pool:
        """What peers of every machine did; losses that those ``without`` explain accuse nobody else."""
        pool = Pool()
        for name, hours in self.hours.items():
            if name not in without:
                for size, worked in hours.items():
                    pool.hours[size] += worked
        for loss in self.losses:
            if not without or without.isdisjoint(loss.blamed):
                pool.add(loss)
        return pool

    def against(self, without: Iterable[str]) -> dict[str, list[Loss]]:
        """All losses of each of these machines."""
        found: dict[str, list[Loss]] = {name: [] for name in without}
        for loss in self.losses:
            for name in found.keys() & loss.blamed:
                found[name].append(loss)
        return found


@dataclass
class Pool:
    """Sums over machines. ``points``: how often a loss of the kind spoke against a machine, any one."""

    hours: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    losses: dict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    points: dict[Kind, int] = field(default_factory=lambda: defaultdict(int))
    against: dict[str, dict[Kind, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))

    def add(self, loss: Loss) -> None:
        """A loss that may be of more machines than the grid of evidence can tell is no evidence."""
        if loss.of > GRID:
            return
        kind = loss.kind
        self.losses[kind] += 1
        self.points[kind] += len(loss.blamed)
        for name in loss.blamed:
            self.against[name][kind] += 1

    def joined_by(self, hours: Mapping[int, float], losses: Iterable[Loss]) -> Pool:
        """These sums and one machine's own; evidence against that machine alone."""
        pool = Pool(defaultdict(float, self.hours), defaultdict(int, self.losses), defaultdict(int, self.points))
        for size, worked in hours.items():
            pool.hours[size] += worked
        for loss in losses:
            pool.add(loss)
        return pool

    def evidence(self, name: str) -> float:
        """In lost runs."""
        return sum(count / kind[1] for kind, count in self.against.get(name, {}).items())

    def parts(
        self, name: str, hours: Mapping[int, float], growth: float = 1.0, own: float | None = None
    ) -> tuple[Part, ...]:
        """What was seen of one machine beside what is expected of its hours, if all are alike.

        ``growth``, ``own``: how many times the time until now, of all and of this machine, there will be in the end. As
        many losses more are expected, and a standard deviation beyond: few losses so far may be luck.
        """
        mine = self.against.get(name, {})
        more = growth + (growth - 1.0) / math.sqrt(max(1, sum(self.losses.values())))
        parts = []
        for kind, count in self.losses.items():
            whole, worked = self.hours.get(kind[0], 0.0) * growth, hours.get(kind[0], 0.0) * (own or growth)
            here = mine.get(kind, 0)
            if (whole > 0 and worked > 0) or here:
                chance = min(1.0, worked / whole * self.points[kind] / count) if whole > 0 else 0.0
                parts.append(Part(kind[1], here, math.ceil(count * more - 1e-9), chance))
        return tuple(parts)


class Worked:
    """One machine's runs in few bytes (20 a run): a fleet's runs of half a year would not fit as events.

    ``seen_first``: seconds since 1970 UTC, None where nothing was observed.
    """

    def __init__(self, machine: Machine, thresholds: Thresholds) -> None:
        self.identity, self.node = machine.identity, machine.node
        times = [event.time for event in machine.events[:1]] + ([] if machine.since is None else [machine.since])
        self.seen_first = min(times, default=None)
        self.lost: list[MachineEvent] = []
        self._ends, self._seconds = array("d"), array("d")  # of an event that does not tell: minus its number of runs
        self._sizes = array("L")
        for event in machine.of_kind("job"):
            self._add(event)
            if speaks_of_machine(event, thresholds):
                self.lost.append(event)

    def _add(self, event: MachineEvent) -> None:
        lasted = _lasted(event)
        self._ends.append(event.time)
        self._seconds.append(-runs_counted(event) if lasted is None else lasted)
        self._sizes.append(bucket(run_size(event)))

    def durations(self, begin: float, end: float) -> Iterator[float]:
        """Seconds, of events that tell."""
        return (s for at, s in zip(self._ends, self._seconds, strict=True) if s >= 0 and begin <= at <= end)

    def hours(self, begin: float, end: float, usual: float) -> dict[int, float]:
        """By size of the run. ``usual``: seconds of a run that does not tell."""
        hours: dict[int, float] = defaultdict(float)
        for at, seconds, size in zip(self._ends, self._seconds, self._sizes, strict=True):
            if begin <= at <= end:
                hours[size] += (seconds if seconds >= 0 else -seconds * usual) / _HOUR
        return hours


def speaks_of_machine(event: MachineEvent, thresholds: Thresholds) -> bool:
    """A lost run whose class speaks of the machine or its network."""
    return event.kind == "job" and event.name == "failed" and str(event.data.get("class")) in thresholds.classes


def tally_of(machines: Sequence[Worked], begin: float, end: float, thresholds: Thresholds) -> Tally:
    """Of runs that ended in the window. Runs that don't tell how long they lasted count as the median of those that do,
    or as an hour each where none does: then machines are compared by the number of their runs.
    """
    told = array("d", (seconds for machine in machines for seconds in machine.durations(begin, end)))
    usual = statistics.median(told) if told else _HOUR
    hours = {machine.identity: machine.hours(begin, end, usual) for machine in machines}
    lost = sorted(_losses(machines, begin, end), key=lambda loss: (loss.time, loss.blamed))
    counted = list(_counted(lost, thresholds["blame.episode_h"] * _HOUR))
    return Tally(hours, tuple(_apart(counted, len(machines), thresholds)))


def _lasted(event: MachineEvent) -> float | None:
    """Seconds, of all runs that the event counts."""
    lasted = event.data.get("lasted")
    return float(lasted) if isinstance(lasted, (int, float)) and lasted >= 0 else None


def runs_counted(event: MachineEvent) -> int:
    """Runs that went well are counted together when they are old."""
    count = event.data.get("count")
    return count if isinstance(count, int) and count > 0 else 1


def run_size(event: MachineEvent) -> int:
    """Slurm has 65,534 nodes at most; what is no such number is damaged, and taken for one node."""
    size = event.data.get("nodes")
    return size if isinstance(size, int) and 0 < size <= _NODES_MAX else 1


def _losses(machines: Iterable[Worked], begin: float, end: float) -> Iterator[Loss]:
    """One a run. Where a verdict proved several machines, it speaks against each by its part."""
    runs: dict[tuple[str, str], list[tuple[Worked, MachineEvent]]] = defaultdict(list)
    for machine in machines:
        for event in machine.lost:
            if begin <= event.time <= end:
                runs[str(event.data.get("job")), str(event.data.get("run"))].append((machine, event))
    for there in runs.values():
        named = [machine.identity for machine, event in there if event.data.get("named") is True]
        event, size = there[0][1], max(len(there), *(run_size(e) for _, e in there))
        at = max(e.time for _, e in there)
        if named:
            yield Loss(at, size, tuple(sorted(named)), len(named))
        else:
            yield Loss(at, size, tuple(sorted(machine.identity for machine, _ in there)), size, _owner(event))


def _owner(event: MachineEvent) -> str:
    """The user, else the job without the number of its task."""
    return str(event.data.get("user") or _PART.sub("", str(event.data.get("job"))))


def _counted(losses: Iterable[Loss], episode: float) -> Iterator[Loss]:
    """One a fault: a node that fails run after run counts once an episode, an owner once for each machine."""
    last: dict[str, float] = {}
    known: dict[str, set[str]] = defaultdict(set)
    for loss in losses:
        if loss.lineage:
            fresh = [name for name in loss.blamed if name not in known[loss.lineage]]
            known[loss.lineage].update(fresh)
        else:
            fresh = [name for name in loss.blamed if loss.time - last.get(name, -math.inf) >= episode]
            last.update(dict.fromkeys(fresh, loss.time))
        if fresh:
            yield replace(loss, blamed=tuple(fresh))


def _apart(losses: Sequence[Loss], nodes: int, thresholds: Thresholds) -> Iterator[Loss]:
    """Those that did not come in a burst over the site. A node that fails run after run is no burst: it counts once."""
    within = thresholds["blame.together_min"] * 60
    most = max(thresholds["blame.together_jobs"], thresholds["blame.together_share"] * nodes)
    burst: set[int] = set()
    first = 0
    for last, loss in enumerate(losses):
        while losses[first].time < loss.time - within:
            first += 1
        if last - first + 1 >= most:
            burst.update(range(first, last + 1))
    return (loss for at, loss in enumerate(losses) if at not in burst)
