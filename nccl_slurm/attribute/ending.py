"""The moment at which a run was ended from outside, if it was: what comes after it is a consequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.clocks import Moment
from nccl_slurm.model import Fact, Job

__all__ = ["ENDED_STATES", "REASONS", "STAMP_S", "Ending", "ending_of"]

#: Slurm's base states of a run that someone or a limit ended (job states of sacct(1)); REQUEUED and REVOKED included.
ENDED_STATES = {
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "PREEMPTED": "was preempted",
    "REQUEUED": "was requeued",
    "REVOKED": "was revoked",
    "TIMEOUT": "reached its time limit",
}
#: Reasons that slurmstepd prints: ``CANCELLED AT ... DUE TO TIME LIMIT``. Plain ``CANCELLED AT`` is also what follows
#: a failed task, and ``DUE TO NODE FAILURE`` is another class.
REASONS = {
    "TIME LIMIT": "reached its time limit",
    "PREEMPTION": "was preempted",
    "JOB REQUEUE": "was requeued",
    "DEADLINE": "reached its deadline",
}
#: A cancel's stamp has whole seconds, and its line is printed a moment after the signal.
STAMP_S = 2.0


@dataclass(frozen=True)
class Ending:
    """``moment``: slurmstepd's stamp (accounting's end is later by the time that killing took). ``lines``: by file."""

    was: bool
    facts: Sequence[Fact] = ()
    moment: Moment | None = None
    lines: dict[str, int] = field(default_factory=dict)


def ending_of(job: Job | None, facts: Iterable[Fact]) -> Ending:
    """Slurm's state decides; logs without a job are believed where slurmstepd gives a reason."""
    by_state = job is not None and job.state in ENDED_STATES
    ends = [fact for fact in facts if reading.is_end_of_run(fact) and (by_state or _has_reason(fact))]
    lines: dict[str, int] = {}
    for fact in ends:
        if fact.file is not None and fact.line is not None:
            lines[fact.file] = min(fact.line, lines.get(fact.file, fact.line))
    moments = [Moment(fact.time, 0.0, _stamped_on(fact)) for fact in ends if fact.time is not None]
    was = by_state if job is not None and job.state is not None else bool(ends)
    return Ending(was, ends, min(moments, key=lambda one: one.time, default=None), lines)


def _stamped_on(fact: Fact) -> str | None:
    """``STEP 42.0 ON n1``: the node whose slurmstepd says so."""
    node = fact.data.get("first_node")
    return node if isinstance(node, str) else fact.host


def _has_reason(fact: Fact) -> bool:
    return any(reason in fact.text.upper() for reason in REASONS)
