"""Which nodes gave an observation. Those that gave none are told by `doctor.judge`, which knows what was tried, and
whatever checks are chosen: without it nothing is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_slurm.doctor.check import Area, Finding
from nccl_slurm.doctor.judge import UNREACHABLE
from nccl_slurm.doctor.observation import Fleet

__all__ = ["CHECKS"]


@dataclass(frozen=True)
class _Reached:
    id: str = UNREACHABLE
    title: str = "Every chosen node gives an observation"
    area: Area = "fleet"
    sources: Sequence[str] = ()
    explains: Sequence[str] = ()

    def judge(self, observed: Fleet) -> Iterable[Finding]:
        if observed.nodes:
            yield Finding(self.id, "PASS", "gave an observation", nodes=tuple(sorted(observed.nodes)))
        elif not observed.silent:
            yield Finding(self.id, "NOT-APPLICABLE", "no node was chosen")
        else:
            yield Finding(self.id, "UNKNOWN", "no node gave an observation")


CHECKS = (_Reached(),)
