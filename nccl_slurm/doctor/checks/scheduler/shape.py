"""What the scheduler's checks share: their shape, and their figures (data/doctor-scheduler.toml)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nccl_slurm.doctor.check import Area, Finding
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.tables import packaged

__all__ = ["SlurmCheck", "data", "seconds_of", "threshold"]


@dataclass(frozen=True)
class SlurmCheck:
    id: str
    title: str
    rule: Callable[[SlurmObserved], Iterable[Finding]]
    sources: Sequence[str] = ()
    explains: Sequence[str] = ()
    area: Area = "scheduler"

    def judge(self, observed: SlurmObserved) -> Iterable[Finding]:
        return self.rule(observed)


@cache
def data() -> Mapping[str, Any]:
    return packaged("doctor-scheduler.toml")


def threshold(name: str) -> float:
    return next(float(row["value"]) for row in data()["threshold"] if row["id"] == name)


def seconds_of(value: str) -> float | None:
    """``60 sec`` → 60; Slurm's words for *no limit* (``65534 sec``, UNLIMITED) are None."""
    number = value.split(" ")[0]
    return float(number) if number.isascii() and number.isdigit() and int(number) not in (65533, 65534, 65535) else None
