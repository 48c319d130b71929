"""Nodes whose GPUs do other than those of most: slower clocks under load, idle while the rest works, a crowded host.

One look is one moment: what it finds is worth a second look, and proves nothing alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from nccl_slurm.doctor.check import Area, Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.observation import Fleet, Observation
from nccl_slurm.doctor.read.smi import Gpu
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS", "Pulse"]

_ID = "fleet.stragglers"
_LEAST = 3


@dataclass(frozen=True)
class Pulse:
    """``busy``: GPUs at work, of ``gpus``. ``clock``: MHz of the slowest of them. ``load``: runnable tasks a CPU.
    ``job``: whose ranks are there; empty for nobody's. ``ranks``: how many of them."""

    gpus: int
    busy: int
    clock: int | None
    load: float | None
    kind: str
    job: str
    ranks: int = 0


def pulse(seen: Observation) -> Pulse:
    """Raises NotObserved where the GPUs can't be read."""
    found = machine.gpus(seen)
    told = [gpu for gpu in found if gpu.throttle is not None]
    if not told:
        raise NotObserved("the driver does not tell whether GPUs are idle")
    busy = [gpu for gpu in told if "gpu_idle" not in (gpu.throttle or ())]
    job, ranks = machine.jobs(seen), machine.ranks(seen)
    return Pulse(len(told), len(busy), _slowest(busy), _load(seen), told[0].name or "", job, len(ranks))


def _slowest(busy: Sequence[Gpu]) -> int | None:
    return min((gpu.clock for gpu in busy if gpu.clock is not None), default=None)


def _load(seen: Observation) -> float | None:
    try:
        return float(seen.text("load").split()[0]) / _cpus(seen.text("cpu"))
    except (NotObserved, ValueError, IndexError, ZeroDivisionError):
        return None


def _cpus(text: str) -> int:
    """``0-95,97``."""
    parts = (part.partition("-") for part in text.splitlines()[0].split(","))
    return sum(int(high or low) - int(low) + 1 for low, _, high in parts)


def _findings(fleet: Fleet) -> Iterator[Finding]:
    """Only nodes that work on the same job are compared: another job does other things."""
    pulses: dict[str, Pulse] = {}
    for name, seen in fleet.nodes.items():
        try:
            pulses[name] = pulse(seen)
        except NotObserved:
            continue
    groups = [
        {name: one for name, one in pulses.items() if one.job == job}
        for job in sorted({one.job for one in pulses.values() if one.job})
    ]
    groups = [group for group in groups if len(group) >= _LEAST]
    if not groups:
        yield Finding(_ID, "NOT-APPLICABLE", f"no job has ranks on {_LEAST} nodes whose GPUs can be read")
    for group in groups:
        found = [*_idle(group), *_slow(group), *_crowded(group)]
        yield from found
        if not found:
            at_work = any(one.busy for one in group.values())
            text = "no node's GPUs are slower or idler than those of most" if at_work else "GPUs of all nodes are idle"
            yield Finding(_ID, "PASS", text, nodes=sorted(group))


def _idle(pulses: Mapping[str, Pulse]) -> Iterator[Finding]:
    """A rank that loads data or hangs leaves its GPU idle, while the others' spin in the collective."""
    most = max(one.ranks for one in pulses.values())
    idle = sorted(name for name, one in pulses.items() if one.busy < _due(one, most))
    whole = len(pulses) - len(idle)
    if idle and whole > len(pulses) * table()["odd-share"]:
        proofs = [
            Proof(f"nvidia-smi on {name}", f"{pulses[name].busy} of {pulses[name].gpus} GPUs at work") for name in idle
        ]
        text = "GPUs are idle while those of most nodes work"
        yield Finding(_ID, "WARN", text, "P1", idle, proofs=proofs[:8])


def _due(one: Pulse, most: int) -> float:
    """GPUs that should work: a job's last node may have fewer ranks than the others, and so fewer GPUs."""
    return one.gpus * one.ranks / most if most else one.gpus


def _slow(pulses: Mapping[str, Pulse]) -> Iterator[Finding]:
    for kind in sorted({one.kind for one in pulses.values()}):
        clocks = {name: one.clock for name, one in pulses.items() if one.kind == kind and one.clock}
        if len(clocks) < _LEAST:
            continue
        middle = median(clock for clock in clocks.values() if clock)
        least = middle * table()["bandwidth-watch-share"]
        slow = sorted(name for name, clock in clocks.items() if clock and clock < least)
        if slow:
            proofs = [
                Proof(f"nvidia-smi on {name}", f"SM clock {clocks[name]} MHz; median {middle:g} MHz") for name in slow
            ]
            yield Finding(
                _ID, "WARN", "GPUs run at a lower clock than those of most nodes", "P1", slow, proofs=proofs[:8]
            )


def _crowded(pulses: Mapping[str, Pulse]) -> Iterator[Finding]:
    loads = {name: one.load for name, one in pulses.items() if one.load is not None}
    if len(loads) < _LEAST:
        return
    middle = median(loads.values())
    high = sorted(name for name, load in loads.items() if load > 1.0 and load > 2 * middle)
    if high:
        proofs = [Proof(f"/proc/loadavg on {name}", f"{loads[name]:.2f} a CPU; median {middle:.2f}") for name in high]
        yield Finding(
            _ID, "WARN", "more runnable tasks than processors, unlike most nodes", "P2", high, proofs=proofs[:8]
        )


@dataclass
class _Stragglers:
    id: str = _ID
    title: str = "No node lags behind the others"
    area: Area = "fleet"
    sources: Sequence[str] = ("nvidia-smi", "load", "cpu", "ranks")
    explains: Sequence[str] = ("fleet.bandwidth",)

    def judge(self, observed: Fleet) -> Iterable[Finding]:
        return _findings(observed)


CHECKS = (_Stragglers(),)
