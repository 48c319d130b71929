"""The past of all machines, as statistics want it, from what the store holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.rows import NodeEventRow, RunRow

__all__ = ["KINDS", "machines_of"]

#: Of events that these machines have.
KINDS = ("state", "job")

_ALL = 10**9
#: Verdicts that say that nothing was lost.
_WELL = frozenset({"benign", "benign-teardown", "preempt-cancel"})


def machines_of(store: Any, since: float) -> Iterator[Machine]:
    """One a node that Slurm told of, with its states, and its runs from ``since`` on. A run without a verdict is none.

    All states of the past are read, for when a machine was seen first: they are few beside the runs.
    """
    states: dict[str, list[MachineEvent]] = defaultdict(list)
    for edge in store.node_events():
        states[edge.node].append(_state(edge))
    runs: dict[str, list[MachineEvent]] = defaultdict(list)
    for run in store.list_runs(since=since, limit=_ALL):
        for node, event in _ends(store, run).items():
            runs[node].append(event)
    return (_machine(node, states[node], runs[node]) for node in sorted(states))


def _machine(node: str, states: list[MachineEvent], runs: list[MachineEvent]) -> Machine:
    events = sorted([*states, *runs], key=lambda event: event.time)
    return Machine(node, node, since=states[0].time, events=tuple(events))


def _state(edge: NodeEventRow) -> MachineEvent:
    data = {"reason": edge.reason, "by": edge.reason_by}
    return MachineEvent(edge.time, "state", edge.state, edge.source, edge.reason or "", data=data)


def _ends(store: Any, run: RunRow) -> Mapping[str, MachineEvent]:
    if run.end is None or run.status != "final" or run.disposition is None:
        return {}
    verdict = _verdict(store, run)
    failed = verdict is not None and verdict["class"] not in _WELL
    named = {culprit["host"] for culprit in verdict["culprits"]} if verdict else set()
    common = {"job": run.id, "run": run.run, "nodes": len(run.nodes), "user": run.user}
    if run.start is not None:
        common["lasted"] = run.end - run.start
    return {
        node: MachineEvent(
            run.end, "job", "failed" if failed else "well", "daemon", data=common | _loss(verdict, node in named)
        )
        for node in run.nodes
    }


def _loss(verdict: Mapping[str, Any] | None, named: bool) -> dict[str, Any]:
    return {} if verdict is None else {"class": verdict["class"], "named": named}


def _verdict(store: Any, run: RunRow) -> Mapping[str, Any] | None:
    """Only of runs that were diagnosed: the others have no report, or none that blames."""
    kept = store.report(run.cluster, run.raw_id, run.run) if run.disposition == "diagnose" else None
    return None if kept is None else kept.report["verdict"]
