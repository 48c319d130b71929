"""A check of a job: its id, what it needs of each node, and a function from what was seen to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.doctor.check import Area, Finding, NotObserved, Proof
from nccl_slurm.doctor.observation import JobObserved
from nccl_slurm.model import Fact

__all__ = ["SHOWN", "JobCheck", "lines_of", "proof"]

#: Proofs behind one finding.
SHOWN = 6


@dataclass
class JobCheck:
    """``ask`` may raise NotObserved."""

    id: str
    title: str
    sources: Sequence[str]
    ask: Callable[[JobObserved], Iterable[Finding]]
    explains: Sequence[str] = ()
    area: Area = "job"

    def judge(self, observed: JobObserved) -> Iterator[Finding]:
        values = _values(observed)
        try:
            for one in self.ask(observed):
                yield replace(one, values={**values, **one.values})
        except NotObserved as error:
            yield Finding(self.id, "UNKNOWN", str(error), values=values)


def _values(observed: JobObserved) -> dict[str, str]:
    """For commands. ``owner``: uid of who may make a step in it, ``raw_job``: by which id; ``batch_job``: it has a
    script. All but ``job`` only while it runs."""
    told, live = {"job": observed.id}, observed.live
    if live is not None and live.uid is not None:
        told |= {"owner": str(live.uid), "raw_job": str(observed.raw_id)}
    return told | {"batch_job": str(observed.raw_id)} if live is not None and live.batch else told


def proof(node: str, pid: int, file: str, line: str) -> Proof:
    """``file``: of the process's folder in /proc."""
    return Proof(f"{node}: /proc/{pid}/{file}", line)


def lines_of(facts: Iterable[Fact]) -> list[Proof]:
    """Where each line stands, and what it says."""
    return [
        Proof(f"{fact.file}:{fact.line}" if fact.line else str(fact.file or fact.producer), fact.text) for fact in facts
    ]
