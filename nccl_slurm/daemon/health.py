"""How a node is, as the store keeps it; without the store itself, which takes 0.15 s to import."""

from __future__ import annotations

from nccl_slurm.scheduler.client import NodeState

__all__ = ["REMOVED", "failed_state", "health"]

#: No state of Slurm's: the node is no longer in its configuration.
REMOVED = "REMOVED"

#: What a node does, not how it is: left out of the edges, or each job would write two a node.
_WORK = frozenset({"COMPLETING", "PLANNED", "RESERVED", "CLOUD", "DYNAMIC_NORM", "BLOCKED", "PERFCTRS", "RES"})
_WORKING = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "RESERVED"})


def health(node: NodeState) -> str:
    """The state without its share of work: ``UP`` (idle, mixed, allocated), ``UP+DRAIN``, ``DOWN+NOT_RESPONDING`` …"""
    base = "UP" if node.state in _WORKING else node.state
    return "+".join([base, *sorted(node.flags - _WORK)])


def failed_state(state: str) -> bool:
    """`NodeState.failed` of a stored state, as `health` writes it: Slurm sets DOWN after SlurmdTimeout."""
    base, _, flags = state.partition("+")
    return base in ("DOWN", "FAIL", "ERROR") or "FAIL" in flags.split("+")
