"""How Slurm ended the run: cancelled, time limit, preempted, requeued, never launched. Nobody is to blame for these.

What happens to ranks after the end (tracebacks of SIGTERM, exit codes of tasks) is its consequence. So a failure counts
as a cause only where its time, or its line in the same file, shows that it came before.
"""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.ending import ENDED_STATES, REASONS
from nccl_slurm.attribute.finding import Finding, cite
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["after_end", "find", "launch", "may_be_caused_by_end", "was_ended"]


def find(scene: Scene) -> Finding | None:
    ending = scene.ending
    if not ending.was:
        return None
    by = f" by {scene.job.cancelled_by}" if scene.job and scene.job.cancelled_by else ""
    return Finding(
        rule="slurm.ended",
        failure_class="preempt-cancel",
        confidence="proven",
        summary=f"The run {_how(scene, ending.facts)}{by}; nothing observed shows a failure before that.",
        facts=cite(ending.facts),
        time=ending.moment.time if ending.moment else None,
    )


def was_ended(scene: Scene) -> bool:
    return scene.ending.was


def launch(scene: Scene) -> Finding | None:
    """The run never started properly on some node: prolog, credential, container; or mpirun could not start it, whose
    words vouch for no node."""
    causes = scene.sorts.where(lambda fact: fact.hint == "slurm-launch" and fact.role == "cause")
    facts = [fact for fact in causes if not after_end(scene, fact)]
    if not facts:
        return None
    of_slurm = [fact for fact in facts if fact.producer == "slurm"]
    hosts = sorted({host for host in (_where(scene, fact) for fact in of_slurm) if host})
    proven = len(hosts) == 1 and (any(fact.trust == "root" for fact in facts) or scene.job is None)
    proven = proven and any(fact.kind in reading.LAUNCH_ON_NODE and fact.rank is None for fact in facts)
    who = [Culprit("Slurm could not start or end the job here", host=host, evidence=cite(facts)) for host in hosts]
    return Finding(
        rule="slurm.launch",
        failure_class="slurm-launch",
        confidence="proven" if proven else "likely",
        summary=_launched_badly(hosts)
        if of_slurm
        else f"Processes could not be started: {reading.words(facts[0], 160)}",
        facts=cite(facts),
        action="fix-config" if all(fact.kind in reading.LAUNCH_SETTINGS for fact in facts) else "investigate",
        culprits=who if proven else (),
        suspects=() if proven else who[:8],
    )


def _launched_badly(hosts: Sequence[str]) -> str:
    return f"Slurm could not launch or end the job properly{' on ' + hosts[0] if len(hosts) == 1 else ''}."


def _where(scene: Scene, fact: Fact) -> str | None:
    """The node that the line names, else the one that it comes from."""
    told = fact.data.get("node") or fact.data.get("hung_node")
    return scene.node(told if isinstance(told, str) else fact.host)


def after_end(scene: Scene, fact: Fact) -> bool:
    """The fact is known to come after the run was ended from outside."""
    return scene.ending.was and scene.ended_before(fact) is True


def may_be_caused_by_end(scene: Scene, facts: Sequence[Fact]) -> bool:
    """The run was ended from outside, and none of ``facts`` is known to come before that."""
    return scene.ending.was and not any(scene.ended_before(fact) is False for fact in facts)


def _how(scene: Scene, facts: Sequence[Fact]) -> str:
    if scene.job is not None and scene.job.state in ENDED_STATES:
        return ENDED_STATES[scene.job.state]
    text = " ".join(fact.text.upper() for fact in facts)
    return next((how for reason, how in REASONS.items() if reason in text), "was cancelled")
