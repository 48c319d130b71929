"""Verdict → what a person may do: investigate, then reboot, then replace. Without a node history reboot is the most.

Guards, in this order:
- a target is a node of the run, with a name that is safe in a command line;
- software verdicts go to the job's owner and never to a node;
- reboot and replace need hardware evidence of trust root: a job that prints "Xid 79" earns its node a look at most;
- replace needs a fault that outlived a reboot or that the decision table calls final (`step`);
- another machine under the name, a recovery in progress, a controller, a site event, the fleet's cap (`guard`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.history.machine import Machine
from nccl_slurm.model import Culprit, Evidence, Fact, Recommendation, Verdict
from nccl_slurm.recommend import pattern
from nccl_slurm.recommend.commands import NODE_NAME, as_it_stands, commands
from nccl_slurm.recommend.fault import XID, Fault, of_fact, of_machine
from nccl_slurm.recommend.guard import Case, guarded, others_reason
from nccl_slurm.recommend.judgement import HARDWARE
from nccl_slurm.recommend.policy import Policy, default
from nccl_slurm.recommend.site import Running, Site
from nccl_slurm.recommend.step import HEAVY, Step, next_step

__all__ = ["ABOUT_THE_RUN", "HARDWARE", "NODE_NAME", "advise", "recommend"]

#: Classes in which the node deserves a look although no hardware fault is proven.
_LOOK_AT_NODE = HARDWARE | {"slurm-node-fail", "slurm-launch", "net-ib-transport", "storage-stall"}
#: Clocks of kernel, hooks and accounting differ by so much at most (see attribute/machine).
_SLACK_S = 60.0
#: In every ``why`` that asks for it. HyperPod makes all volumes of an instance anew.
_DESTROYS = "Replacing destroys root and secondary volumes"
_JOB_ID = re.compile(r"\d{1,10}(?:[_+]\d{1,10})?\Z")
#: Where no node is spoken of: to the owner of the job.
ABOUT_THE_RUN = {
    "fix-code": "Look at the program first: nothing that was observed speaks against a node.",
    "fix-config": "Look at settings, limits and container first: nothing that was observed speaks against a node.",
    "network": "The path between nodes is at fault: look at switch, cable, routes and firewall.",
    "investigate": "What was observed does not single out a node.",
}


def recommend(
    verdict: Verdict,
    evidence: Evidence,
    *,
    machines: Mapping[str, Machine] | None = None,
    site: Site | None = None,
    policy: Policy | None = None,
    now: float | None = None,
) -> tuple[Recommendation, ...]:
    """At most one action for each node, or one for the owner; empty where nothing is to be done.

    ``machines`` by node name, of the run's nodes at least and best of the whole fleet (site events are seen in it
    alone); None, or a node that is missing there: its history was not observed. ``policy`` None: the packaged table.
    """
    site, policy = site or Site(), policy or default()
    people = _targets(verdict, evidence)
    found: list[Recommendation] = []
    for name, mine in sorted(people.items()):
        case = _case(name, evidence, machines, site, policy, now)
        found.append(_for_node(verdict, evidence, case, mine))
        if found[-1].action in HEAVY:
            site = replace(site, open={**site.open, name: found[-1].action})
    if people:
        return tuple(found)
    return (*_for_owner(verdict), *_patterns(verdict, evidence, machines, policy))


def advise(case: Case, faults: Sequence[Fault], reason: str = "nccl-slurm") -> Recommendation | None:
    """The same for one machine without a run: ``faults`` are of trust root. None: nothing asks for a look.

    ``reason`` goes into the command, without quotes. What statistics say alone comes to a look and no further.
    """
    step = next_step(faults, case.machine, case.policy)
    suspected = case.site.suspects.get(case.name)
    if step is None and suspected:
        step = Step("investigate", "ladder.statistics", 1, (suspected,))
    return None if step is None else _recommendation(case, guarded(case, step), "", (), reason)


def _case(
    name: str,
    evidence: Evidence,
    machines: Mapping[str, Machine] | None,
    site: Site,
    policy: Policy,
    now: float | None,
) -> Case:
    view = next((node for node in evidence.nodes if node.name == name), None)
    return Case(name, policy, view, machines, site, now)


def _for_owner(verdict: Verdict) -> tuple[Recommendation, ...]:
    action = "investigate" if verdict.action in HEAVY else verdict.action
    if action not in ABOUT_THE_RUN:
        return ()
    evidence_ids = _ids(verdict.culprits) or _ids(verdict.suspects)
    return (Recommendation(None, action, "ladder.owner", 1, ABOUT_THE_RUN[action], evidence_ids),)


def _targets(verdict: Verdict, evidence: Evidence) -> dict[str, list[Culprit]]:
    """Nodes of the run that the verdict speaks of: proven ones, or those whose own kernel reports a hardware fault."""
    if verdict.failure_class not in _LOOK_AT_NODE or verdict.action in ("none", "network", "fix-config", "fix-code"):
        return {}
    people = verdict.culprits or [c for c in verdict.suspects if _root_hardware(evidence, c.evidence)]
    known = {node.name for node in evidence.nodes} | set(evidence.job.nodes if evidence.job else ())
    targets: dict[str, list[Culprit]] = {}
    for person in people:
        in_run = person.host in known or evidence.job is None  # logs alone know no node list
        if person.host and in_run and NODE_NAME.match(person.host) and _placed(evidence, person):
            targets.setdefault(person.host, []).append(person)
    return targets


def _placed(evidence: Evidence, person: Culprit) -> bool:
    """The host is not just what a job printed: Slurm saw the node fail, root speaks of it, or the words were read in
    that node's own record. Logs without a job know no better."""
    if evidence.job is None or evidence.job.failed_node == person.host:
        return True
    if any(node.name == person.host and node.failed_in_run for node in evidence.nodes):
        return True
    cited = [fact for fact in evidence.facts if fact.id in set(person.evidence) and fact.host == person.host]
    return any(fact.trust == "root" or (fact.file or "").startswith(f"{person.host}/") for fact in cited)


def _for_node(verdict: Verdict, evidence: Evidence, case: Case, people: Sequence[Culprit]) -> Recommendation:
    """Only a proven culprit comes above a look; a look is guarded too (nothing new while a reboot is under way)."""
    ids = _ids(people)
    faults = _faults(evidence, case, ids) if verdict.culprits else []
    step = next_step(faults, case.machine, case.policy) or Step("investigate", "ladder.look", 1, ())
    return _recommendation(case, guarded(case, step), people[0].why, ids, _reason(verdict, evidence))


def _faults(evidence: Evidence, case: Case, ids: Sequence[str]) -> list[Fault]:
    """What root says of this node in this run: the culprit's own facts, others that the table knows, and what the
    machine's history has of the run's time."""
    wanted = set(ids)
    facts = [f for f in evidence.facts if f.trust == "root" and (f.id in wanted or f.host == case.name)]
    found = [of_fact(fact) for fact in facts if fact.kind == XID or case.policy.row(fact.kind, fact.text)]
    start = evidence.job.start if evidence.job else None
    end = evidence.job.end if evidence.job else None
    if start is None:
        return found
    last = (end if end is not None else float("inf")) + _SLACK_S
    past = [fault for fault in of_machine(case.machine) if fault.time and start - _SLACK_S <= fault.time <= last]
    there: dict[tuple[str, int | None, str | None], list[float]] = {}
    for one in sorted((one for one in found if one.time is not None), key=lambda one: one.time or 0.0):
        there.setdefault((one.name, one.code, one.gpu), []).append(one.time or 0.0)
    return [*found, *(one for one in past if not _near(there.get((one.name, one.code, one.gpu), ()), one.time or 0.0))]


def _near(times: Sequence[float], at: float) -> bool:
    """``times`` in order."""
    next_to = times[max(bisect_left(times, at) - 1, 0) :][:2]
    return any(abs(one - at) <= _SLACK_S for one in next_to)


def _root_hardware(evidence: Evidence, ids: Iterable[str]) -> list[Fact]:
    wanted = set(ids)
    return [f for f in evidence.facts if f.id in wanted and f.trust == "root" and f.hint in HARDWARE]


def _recommendation(case: Case, step: Step, first: str, ids: Sequence[str], reason: str) -> Recommendation:
    heavy = step.action in HEAVY
    said = [first] if first else [fault.text[:160] for fault in step.faults[:1]]
    words = [*said, *step.why, *((*_hits(case.site.jobs.get(case.name)), *_foreign(case)) if heavy else ())]
    words += [_DESTROYS] if step.action == "replace" else []
    known = case.machine.identity if case.machine else case.view.identity if case.view else None
    lines = () if step.action == "none" else commands(step.action, case.name, reason, case.site, known)
    return Recommendation(
        target=case.name,
        action=step.action,
        rule=step.rule,
        step=step.number,
        why=f"{case.name}: {'. '.join(word.rstrip('.') for word in words if word)}",
        evidence=tuple(dict.fromkeys([*ids, *(fault.fact for fault in step.faults if fault.fact)])),
        commands=as_it_stands(lines, case.node, case.site.reasons),
    )


def _foreign(case: Case) -> list[str]:
    reason = others_reason(case.node)
    return [f"Its reason in Slurm is '{reason[:120]}', which the command replaces"] if reason else []


def _hits(jobs: Sequence[Running] | None) -> list[str]:
    """How many it hits, where Slurm was asked. Whose they are is nothing for the report of another's job; `review` asks
    again, and says it."""
    if jobs is None:
        return []
    count = {0: "No job", 1: "1 job"}.get(len(jobs), f"{len(jobs)} jobs")
    return [f"{count} ran there when this was judged"]


def _patterns(
    verdict: Verdict, evidence: Evidence, machines: Mapping[str, Machine] | None, policy: Policy
) -> tuple[Recommendation, ...]:
    """A program's fault again and again on one GPU, in jobs of others: a look at the GPU, beside the owner's."""
    if verdict.failure_class != "gpu-app-fault":
        return ()
    found = []
    for node in evidence.nodes:
        facts = [f for f in evidence.facts if f.trust == "root" and f.host == node.name and f.kind == XID]
        why = pattern.repeated([of_fact(fact) for fact in facts], (machines or {}).get(node.name), policy)
        if why and NODE_NAME.match(node.name):
            ids = tuple(fact.id for fact in facts)
            look = commands("investigate", node.name, "", Site(), None)
            found.append(
                Recommendation(node.name, "investigate", "ladder.pattern", 1, f"{node.name}: {why}", ids, look)
            )
    return tuple(found)


def _reason(verdict: Verdict, evidence: Evidence) -> str:
    job = evidence.job.id if evidence.job and _JOB_ID.match(evidence.job.id) else None
    return f"nccl-slurm: {verdict.failure_class}" + (f", report {job}" if job else "")


def _ids(people: Iterable[Culprit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fact for person in people for fact in person.evidence))
