"""How a run ended, for each machine that it had. Pure.

Runs that went well count as much as those that failed: without them a node that is used a lot looks bad.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import RunRow

__all__ = ["outcome_ids", "outcomes"]

#: Classes in which no machine lost anything: it ended as it should, or somebody ended it.
_WELL = frozenset({"benign", "benign-teardown", "preempt-cancel"})


def outcomes(run: RunRow, report: Mapping[str, Any]) -> dict[str, MachineEvent]:
    """By node name. ``report`` is the final one. A run without an end tells nothing.

    A run that was cancelled or preempted is ``well`` with its class in the data: nothing speaks against its machines,
    and nothing says that it would have ended well.
    """
    if run.end is None or not report["verdict"]:
        return {}
    failure_class = str(report["verdict"]["class"])
    named = {culprit["host"] for culprit in report["verdict"]["culprits"]}
    name = "well" if failure_class in _WELL else "failed"
    common: dict[str, Any] = {"job": run.id, "run": run.run, "nodes": len(run.nodes), "user": run.user}
    if run.start is not None:
        common["lasted"] = run.end - run.start
    if failure_class != "benign":
        common["class"] = failure_class
    found = {}
    for node in run.nodes:
        data = {**common, "named": node in named} if name == "failed" else common
        found[node] = MachineEvent(run.end, "job", name, "daemon", data=data)
    return found


def outcome_ids(run: RunRow) -> dict[str, MachineEvent]:
    """By node name: as much of `outcomes` as it takes to find them in the store."""
    if run.end is None:
        return {}
    return dict.fromkeys(run.nodes, MachineEvent(run.end, "job", "", "", data={"job": run.id, "run": run.run}))
