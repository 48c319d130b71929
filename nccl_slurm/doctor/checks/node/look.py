"""What each check of a node is made of: its id, the sources it needs, and a function from what was seen to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.doctor.check import Area, Finding, NotObserved, Priority, Proof, Status
from nccl_slurm.doctor.observation import Observation

__all__ = ["Look", "NodeCheck", "is_absent"]

_SHOWN = 6


@dataclass(frozen=True)
class Look:
    """One check's look at one node: what was seen, and the words to answer with."""

    check: str
    seen: Observation

    def passed(self, text: str, *proofs: Proof) -> Finding:
        return Finding(self.check, "PASS", text, nodes=[self.seen.node], proofs=proofs)

    def unknown(self, text: str, *proofs: Proof) -> Finding:
        return Finding(self.check, "UNKNOWN", text, nodes=[self.seen.node], proofs=proofs)

    def not_applicable(self, text: str) -> Finding:
        return Finding(self.check, "NOT-APPLICABLE", text, nodes=[self.seen.node])

    def warn(
        self,
        priority: Priority,
        text: str,
        *proofs: Proof,
        since: float | None = None,
        values: Mapping[str, str] | None = None,
        **more: str,
    ) -> Finding:
        return self._wrong("WARN", priority, text, proofs, since, {**(values or {}), **more})

    def fail(
        self,
        priority: Priority,
        text: str,
        *proofs: Proof,
        since: float | None = None,
        values: Mapping[str, str] | None = None,
        **more: str,
    ) -> Finding:
        return self._wrong("FAIL", priority, text, proofs, since, {**(values or {}), **more})

    def _wrong(
        self,
        status: Status,
        priority: Priority,
        text: str,
        proofs: Sequence[Proof],
        since: float | None,
        values: Mapping[str, str],
    ) -> Finding:
        node, shown = self.seen.node, proofs[:_SHOWN]
        told = {"node": node, **self._job(), **values}
        return Finding(self.check, status, text, priority, [node], since=since, proofs=shown, values=told)

    def _job(self) -> Mapping[str, str]:
        """For commands: the one beside which we read, in a step as its owner. A job of our own has ended by then, and
        one that took in our SSH session (pam_slurm_adopt) is anybody's."""
        told = self.seen.job if self.seen.way in ("job-step", "local") else None
        if told is None:
            return {}
        return {"job": told, "owner": str(self.seen.uid)} if self.seen.way == "job-step" else {"job": told}


@dataclass
class NodeCheck:
    """``ask`` may raise NotObserved."""

    id: str
    title: str
    sources: Sequence[str]
    ask: Callable[[Look], Iterable[Finding]]
    explains: Sequence[str] = ()
    area: Area = "node"

    def judge(self, observed: Observation) -> Iterable[Finding]:
        return self.ask(Look(self.id, observed))


def is_absent(error: NotObserved) -> bool:
    """Whether what was asked for is not on the node at all, in the words of `doctor.gather`."""
    return "not found on this node" in str(error) or "no such file" in str(error).lower()
