"""What one rule found. The rules know nothing of one another; `blame` puts their findings in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.model import Culprit, Fact, Inference

__all__ = ["ACTION_OF", "CITED_MAX", "Finding", "action_of", "cite", "rank_list"]

#: Facts cited for one statement: a hang of 16,384 ranks has as many lines that say the same.
CITED_MAX = 24
#: Suspects listed; more than this many are no hint.
SUSPECTS_MAX = 16

#: Next step by class, from the evidence of one run alone. Hardware classes need root's word, see `machine`.
ACTION_OF = {
    "collective-missing-rank": "fix-code",
    "collective-mismatch": "fix-code",
    "collective-hang-unattributed": "investigate",
    "watchdog-stuck": "fix-code",
    "straggler": "investigate",
    "rank-exception": "fix-code",
    "cuda-oom": "fix-code",
    "host-oom": "fix-config",
    "process-signal": "unknown",
    "gpu-hw-ecc": "investigate",
    "gpu-hw-lost": "investigate",
    "nvlink-fabric": "investigate",
    "gpu-app-fault": "fix-code",
    "net-ib-transport": "network",
    "net-ib-setup": "fix-config",
    "net-socket-connect": "network",
    "net-peer-lost": "investigate",
    "net-efa-ofi": "fix-config",
    "version-mismatch": "fix-config",
    "resource-memlock": "fix-config",
    "resource-shm": "fix-config",
    "rendezvous-store": "fix-config",
    "slurm-node-fail": "investigate",
    "slurm-launch": "investigate",
    "preempt-cancel": "none",
    "storage-stall": "investigate",
    "benign": "none",
    "benign-teardown": "none",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class Finding:
    """``culprits`` only where proven. ``time`` is the earliest moment behind it, None where no line has a clock."""

    rule: str
    failure_class: str
    confidence: str
    summary: str
    culprits: Sequence[Culprit] = ()
    suspects: Sequence[Culprit] = ()
    facts: Sequence[str] = ()
    action: str | None = None
    time: float | None = None
    uncertainty_s: float = 0.0

    def inference(self) -> Inference:
        return Inference(self.summary, self.rule, tuple(self.facts))

    def naming(self, people: Sequence[Culprit], *, proven: bool) -> Finding:
        """With culprits where proven, else with suspects, or with nobody where they are too many to be a hint."""
        if proven:
            return replace(self, culprits=tuple(people), suspects=())
        return replace(self, culprits=(), suspects=tuple(people) if len(people) <= SUSPECTS_MAX else ())

    def next_step(self) -> str:
        return self.action or action_of(self.failure_class)

    def named(self) -> frozenset[int]:
        """Ranks named, proven or not."""
        return frozenset(c.rank for c in (*self.culprits, *self.suspects) if c.rank is not None)


def action_of(failure_class: str) -> str:
    return ACTION_OF.get(failure_class, "unknown")


def cite(facts: Iterable[Fact]) -> tuple[str, ...]:
    """Ids without repeats, at most `CITED_MAX`."""
    ids: dict[str, None] = {}
    for fact in facts:
        if fact.id:
            ids[fact.id] = None
            if len(ids) == CITED_MAX:
                break
    return tuple(ids)


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 3, 5`` or the first eight and how many more."""
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
