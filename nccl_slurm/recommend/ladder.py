"""Verdict → what a person may do: investigate, then reboot, then replace. Without a node history reboot is the most.

Guards, in this order:
- a target is a node of the run, with a name that is safe in a command line;
- reboot needs hardware evidence of trust root: a job that prints "Xid 79" earns its node a look at most;
- a controller, or a node whose role can't be told, is never rebooted: plan a fail-over first;
- software verdicts go to the job's owner and never to a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_slurm.model import Culprit, Evidence, Fact, NodeView, Recommendation, Verdict

__all__ = ["HARDWARE", "NODE_NAME", "recommend"]

#: Classes that blame a machine.
HARDWARE = frozenset({"gpu-hw-ecc", "gpu-hw-lost", "nvlink-fabric"})
#: Classes in which the node deserves a look although no hardware fault is proven.
_LOOK_AT_NODE = HARDWARE | {"slurm-node-fail", "slurm-launch", "net-ib-transport", "storage-stall"}
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")

_JOB_ID = re.compile(r"\d{1,10}(?:[_+]\d{1,10})?\Z")
_OWNER = {
    "fix-code": "Look at the program first: nothing that was observed speaks against a node.",
    "fix-config": "Look at settings, limits and container first: nothing that was observed speaks against a node.",
    "network": "The path between nodes is at fault: look at switch, cable, routes and firewall.",
    "investigate": "What was observed does not single out a node; look at the report.",
}


def recommend(verdict: Verdict, evidence: Evidence) -> tuple[Recommendation, ...]:
    """At most one action for each node, or one for the owner; empty where nothing is to be done."""
    nodes = _targets(verdict, evidence)
    if nodes:
        return tuple(_for_node(verdict, evidence, name, people) for name, people in sorted(nodes.items()))
    action = "investigate" if verdict.action in ("reboot", "replace") else verdict.action
    if action not in _OWNER:
        return ()
    evidence_ids = _ids(verdict.culprits) or _ids(verdict.suspects)
    return (Recommendation(None, action, "ladder.owner", 1, _OWNER[action], evidence_ids),)


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


def _for_node(verdict: Verdict, evidence: Evidence, name: str, people: Sequence[Culprit]) -> Recommendation:
    ids = _ids(people)
    wanted, rule, why = "investigate", "ladder.look", f"{name}: {people[0].why}"
    if verdict.action in ("reboot", "replace") and verdict.culprits and _root_hardware(evidence, ids):
        if _role(evidence.nodes, name) == "compute":
            wanted, rule = "reboot", "ladder.reboot"
        else:
            rule = "ladder.controller"
            why = f"{why}. It may be a Slurm controller: plan a fail-over first, never reboot it unplanned"
    return Recommendation(name, wanted, rule, 1, why, ids, _commands(wanted, name, verdict, evidence))


def _root_hardware(evidence: Evidence, ids: Iterable[str]) -> list[Fact]:
    wanted = set(ids)
    return [f for f in evidence.facts if f.id in wanted and f.trust == "root" and f.hint in HARDWARE]


def _role(nodes: Iterable[NodeView], name: str) -> str:
    return next((node.role for node in nodes if node.name == name), "unknown")


def _commands(action: str, name: str, verdict: Verdict, evidence: Evidence) -> tuple[str, ...]:
    """Exact commands. ``ASAP`` drains the node first and lets running jobs end (scontrol(1))."""
    look = f"scontrol show node {name}"
    if action != "reboot":
        return (look,)
    job = evidence.job.id if evidence.job and _JOB_ID.match(evidence.job.id) else None
    reason = f"nccl-slurm: {verdict.failure_class}" + (f", report {job}" if job else "")
    return (look, f'scontrol reboot ASAP nextstate=RESUME reason="{reason}" {name}')


def _ids(people: Iterable[Culprit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fact for person in people for fact in person.evidence))
