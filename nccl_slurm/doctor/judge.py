"""Answers of nodes → what checks are given → findings. Pure. A fault of one check, or of one node, costs itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccl_slurm.doctor.check import Check, Finding, NotObserved, judged
from nccl_slurm.doctor.observation import Observation, unpacked
from nccl_slurm.doctor.reach import NO_PYTHON, Answer

__all__ = ["UNREACHABLE", "has_ranks", "observation_of", "of_node", "safely", "silent_nodes"]

UNREACHABLE = "fleet.unreachable"


def observation_of(
    answer: Answer,
    since: float | None,
    fields: Mapping[str, str],
    owner: str = "",
    until: float | None = None,
) -> Observation:
    """``owner``: of the job that was looked at. Raises NotObserved."""
    if answer.why:
        raise NotObserved(answer.why)
    seen = unpacked(answer.data, answer.node, answer.way)
    step_of = owner if answer.way == "job-step" else ""
    return replace(seen, since=since, until=until, slurm=fields, offset_s=_offset(seen.at, answer), owner=step_of)


def has_ranks(seen: Observation) -> bool:
    """Whether any was seen; where they could not be read, none was."""
    try:
        told = seen.reader("ranks")
    except NotObserved:
        return False
    return isinstance(told, dict) and bool(told.get("ranks"))


def _offset(at: float, answer: Answer) -> float:
    """The node read its clock between ``sent`` and ``received``: what it is off by at the least."""
    early, late = at - answer.received, at - answer.sent
    return early if early > 0 else late if late < 0 else 0.0


def of_node(check: Check[Any], seen: Observation) -> list[Finding]:
    return [one if one.nodes else replace(one, nodes=(seen.node,)) for one in safely(check, seen)]


def safely(check: Check[Any], observed: Any) -> list[Finding]:
    """A fault of one check costs that check."""
    try:
        return judged(check, observed)
    except Exception as error:
        if os.environ.get("NCCL_SLURM_TRACEBACK"):
            raise
        why = f"the check itself failed ({type(error).__name__}: {error}); NCCL_SLURM_TRACEBACK=1 shows where"
        return [Finding(check.id, "UNKNOWN", why)]


def silent_nodes(checks: Sequence[Check[Any]], silent: Sequence[Answer]) -> list[Finding]:
    """Of nodes that gave nothing, no check says anything but that."""
    found = [_unreachable(one) for one in silent]
    nodes = tuple(one.node for one in silent)
    if nodes:
        why = "the node gave no observation"
        found += [Finding(check.id, "UNKNOWN", why, nodes=nodes, explained_by=UNREACHABLE) for check in checks]
    return found


def _unreachable(answer: Answer) -> Finding:
    """Where nothing was tried, the scheduler had no place, or it has no Python for us, the node is not at fault."""
    if answer.tried and NO_PYTHON not in answer.why:
        return Finding(UNREACHABLE, "FAIL", f"gave no observation: {answer.why}", "P1", nodes=(answer.node,))
    return Finding(UNREACHABLE, "UNKNOWN", f"was not looked at: {answer.why}", nodes=(answer.node,))
