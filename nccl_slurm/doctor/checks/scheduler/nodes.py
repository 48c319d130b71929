"""States of nodes: all flags, and whose words a reason is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nccl_slurm.doctor.check import BY_LOOK, Finding, Priority, Proof, Status
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.shape import SlurmCheck
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.scheduler.client import NodeState

__all__ = ["CHECKS", "NODE_STATE"]

STATE = "scheduler.node-state"
#: Somebody is at work on the node: its state is to be left alone.
_AT_WORK = ("REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERING_UP", "POWERING_DOWN", "MAINTENANCE")
#: Where no row of the catalogue tells what a reason means.
_OWNERS = {"person": "a person gave the reason", "unknown": "whose reason it is, is not known"}


#: Base states (slurm.h node_states), and those that scontrol writes in the place of one.
_KNOWN = frozenset(
    [
        "IDLE",
        "ALLOCATED",
        "MIXED",
        "DOWN",
        "ERROR",
        "FUTURE",
        "UNKNOWN",
        "FAIL",
        "INVAL",
        "COMPLETING",
        "RESERVED",
        "PLANNED",
        "MAINT",
        "BLOCKED",
        "REBOOT",
        "POWERED_DOWN",
        "POWERING_UP",
        "POWERING_DOWN",
    ]
)


class _Word(NamedTuple):
    status: Status
    priority: Priority
    text: str


def _states(seen: SlurmObserved) -> Iterator[Finding]:
    nodes = [node for node in seen.nodes if not seen.chosen or node.name in seen.chosen]
    for node in nodes:
        if (found := _word(node, seen.reasons)) is not None:
            ending = seen.by_look.get(node.name)
            word = _by_look(found, ending)
            yield Finding(
                STATE,
                word.status,
                f"{node.full_state}: {word.text}",
                word.priority,
                nodes=(node.name,),
                since=node.reason_at,
                proofs=[Proof("scontrol show node", _said(node))],
                values={"state": node.full_state, **_reason(node), **(BY_LOOK if ending else {})},
            )
    strange = [node.name for node in nodes if node.state not in _KNOWN]
    strange += sorted(set(seen.fields) - {node.name for node in seen.nodes})
    if strange:
        yield Finding(STATE, "UNKNOWN", "Slurm tells no state of it that is known here", nodes=strange)
    well = [node.name for node in nodes if node.name not in strange and _word(node, seen.reasons) is None]
    if nodes and len(well) == len(nodes) and not strange:
        yield Finding(STATE, "PASS", f"{len(nodes)} nodes: none is down, drained, failing or silent")
    elif well:
        yield Finding(STATE, "PASS", "neither down, drained, failing nor silent", nodes=well)


def _by_look(word: _Word, ending: str | None) -> _Word:
    """``ending``: as in `SlurmObserved.by_look`, None where it was so before."""
    if ending:
        return _Word("FAIL", "P1", f"drained by the job of this look: {word.text}")
    return word if ending is None else word._replace(text=f"since a job of this look was there: {word.text}")


def _word(node: NodeState, reasons: Reasons) -> _Word | None:
    """The worst that its state says; powered-down, planned and reserved nodes are as they should be."""
    reason = reasons.classify(node.reason, node.reason_by)
    if reason.id == "hyperpod-action":
        return _Word("WARN", "P2", "HyperPod is rebooting or replacing it: leave state and reason alone")
    if at_work := [flag for flag in _AT_WORK if flag in node.flags]:
        return _Word("WARN", "P2", f"{at_work[0].lower().replace('_', ' ')}: leave it alone")
    if node.state == "UNKNOWN" or "INVALID_REG" in node.flags or node.state == "INVAL":
        return _Word("FAIL", "P1", f"slurmd registered with less than slurm.conf has, or never{_means(node, reasons)}")
    if node.failed:
        return _Word("FAIL", "P1", f"Slurm gives it no work{_means(node, reasons)}")
    if "NOT_RESPONDING" in node.flags and "POWERED_DOWN" not in node.flags:
        return _Word("FAIL", "P1", f"slurmd does not answer{_means(node, reasons)}")
    if "DRAIN" in node.flags:
        drained = f"takes no new job{_means(node, reasons)}"
        hardware = reason.hardware is True or reason.owner not in ("person", "unknown", "nccl-slurm")
        return _Word("FAIL", "P1", drained) if hardware else _Word("WARN", "P2", drained)
    return None


def _means(node: NodeState, reasons: Reasons) -> str:
    """By the catalogue's row; a person's own words stay in the proof."""
    if not node.reason:
        return "; no reason is given"
    means = reasons.means(node.reason)
    return f"; {means or _OWNERS[reasons.classify(node.reason, node.reason_by).owner]}"


def _reason(node: NodeState) -> dict[str, str]:
    """The entry of `nccl-slurm explain`, which has the packaged rows."""
    known = packaged().classify(node.reason, node.reason_by).id
    told = known or ("not-responding" if "NOT_RESPONDING" in node.flags else None)
    return {"reason": told} if told else {}


def _said(node: NodeState) -> str:
    by = f" by {node.reason_by}" if node.reason_by else ""
    return f"State={node.full_state} Reason={node.reason or '-'}{by}"


NODE_STATE = SlurmCheck(
    STATE, "States of the nodes, with all flags and reasons", _states, explains=("scheduler.stuck-jobs",)
)
CHECKS = (NODE_STATE,)
