"""How Slurm ended the run: cancelled, time limit, preempted, requeued, never launched. Nobody is to blame for these.

What happens to ranks after the end (tracebacks of SIGTERM, exit codes of tasks) is its consequence. So a failure counts
as a cause only where its time, or its line in the same file, shows that it came before.
"""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import Finding, cite
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["ENDED_STATES", "after_end", "find", "launch", "may_be_caused_by_end", "was_ended"]

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
_REASONS = {
    "TIME LIMIT": "reached its time limit",
    "PREEMPTION": "was preempted",
    "JOB REQUEUE": "was requeued",
    "DEADLINE": "reached its deadline",
}
#: A cancel's stamp has whole seconds, and its line is printed a moment after the signal.
_STAMP_S = 2.0


def find(scene: Scene) -> Finding | None:
    if not was_ended(scene):
        return None
    facts = _end_facts(scene)
    how = _how(scene, facts)
    by = f" by {scene.job.cancelled_by}" if scene.job and scene.job.cancelled_by else ""
    return Finding(
        rule="slurm.ended",
        failure_class="preempt-cancel",
        confidence="proven",
        summary=f"The run {how}{by}; nothing observed shows a failure before that.",
        facts=cite(facts),
        time=_end(scene),
    )


def was_ended(scene: Scene) -> bool:
    """Slurm's state decides; logs without a job are believed where slurmstepd gives a reason."""
    if scene.job is not None and scene.job.state is not None:
        return scene.job.state in ENDED_STATES
    return bool(_end_facts(scene))


def launch(scene: Scene) -> Finding | None:
    """The run never started properly on some node: prolog, credential, container."""
    facts = [f for f in scene.facts if f.hint == "slurm-launch" and f.role == "cause" and not after_end(scene, f)]
    if not facts:
        return None
    hosts = sorted({host for host in (_where(scene, fact) for fact in facts) if host})
    proven = len(hosts) == 1 and (any(fact.trust == "root" for fact in facts) or scene.job is None)
    proven = proven and any(fact.kind in reading.LAUNCH_ON_NODE for fact in facts)
    who = [Culprit("Slurm could not start or end the job here", host=host, evidence=cite(facts)) for host in hosts]
    return Finding(
        rule="slurm.launch",
        failure_class="slurm-launch",
        confidence="proven" if proven else "likely",
        summary=f"Slurm could not launch or end the job properly{' on ' + hosts[0] if len(hosts) == 1 else ''}.",
        facts=cite(facts),
        action="fix-config" if all(fact.kind == "slurm.pyxis" for fact in facts) else "investigate",
        culprits=who if proven else (),
        suspects=() if proven else who[:8],
    )


def _where(scene: Scene, fact: Fact) -> str | None:
    """The node that the line names, else the one that it comes from."""
    told = fact.data.get("node") or fact.data.get("hung_node")
    return scene.node(told if isinstance(told, str) else fact.host)


def after_end(scene: Scene, fact: Fact) -> bool:
    """The fact is known to come after the run was ended from outside."""
    if not was_ended(scene):
        return False
    for end in _end_facts(scene):
        if end.file is not None and end.file == fact.file and end.line is not None and fact.line is not None:
            return fact.line > end.line
    end_time = _end(scene)
    return (
        fact.time is not None
        and end_time is not None
        and fact.time + (fact.uncertainty_s or 0.0) >= end_time - _STAMP_S
    )


def may_be_caused_by_end(scene: Scene, facts: Sequence[Fact]) -> bool:
    """The run was ended from outside, and none of ``facts`` is known to come before that."""
    return was_ended(scene) and not any(_before_end(scene, fact) for fact in facts)


def _before_end(scene: Scene, fact: Fact) -> bool:
    for end in _end_facts(scene):
        if end.file is not None and end.file == fact.file and end.line is not None and fact.line is not None:
            return fact.line < end.line
    end_time = _end(scene)
    latest = _latest(fact)
    return latest is not None and end_time is not None and latest < end_time - _STAMP_S


def _latest(fact: Fact) -> float | None:
    return None if fact.time is None else fact.time + (fact.uncertainty_s or 0.0)


def _end_facts(scene: Scene) -> list[Fact]:
    ends = [fact for fact in scene.facts if reading.is_end_of_run(fact)]
    if scene.job is not None and scene.job.state in ENDED_STATES:
        return ends
    return [fact for fact in ends if any(reason in fact.text.upper() for reason in _REASONS)]


def _end(scene: Scene) -> float | None:
    """When the run was told to end: slurmstepd's stamp. Accounting's end is later by the time that killing took."""
    return min((fact.time for fact in _end_facts(scene) if fact.time is not None), default=None)


def _how(scene: Scene, facts: Sequence[Fact]) -> str:
    if scene.job is not None and scene.job.state in ENDED_STATES:
        return ENDED_STATES[scene.job.state]
    text = " ".join(fact.text.upper() for fact in facts)
    return next((how for reason, how in _REASONS.items() if reason in text), "was cancelled")
