"""What is learned of machines, entered into their history: polls, node records, slurmdbd's events."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccl_slurm.clock import Clock
from nccl_slurm.daemon.boots import boot_of_poll, boot_of_record, boots_of_events, reads_anew, told
from nccl_slurm.daemon.evidence import role_of
from nccl_slurm.daemon.faults import kernel_faults
from nccl_slurm.daemon.identity import Holder, Sighting, Step, decide, sighting_of
from nccl_slurm.daemon.readings import compared, readings_of
from nccl_slurm.errors import NcclSlurmError
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import MachineRow, NodeEventRow
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import NodeEvent, NodeState

__all__ = ["MachineWatch"]

_log = logging.getLogger(__name__)
#: Machines that a run is compared with, of each the last days. An event of the site that takes more shows in these.
_BESIDE = 256


class MachineWatch:
    """``controllers`` are the hosts of slurmctld, kept up to date by the loop."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._now: dict[str, MachineRow] = store.machines_now()
        self._states: dict[str, NodeState] = {}
        self.controllers: Sequence[str] = ()

    @property
    def states(self) -> Sequence[NodeState] | None:
        """Of the newest poll; None before the first."""
        return list(self._states.values()) or None

    def troubled(self, since: float, until: float) -> list[str]:
        """Nodes whose machine had a fault or an unasked boot, or that Slurm gave a reason, in this time; what is
        nearest to its end first."""
        at = self._store.in_trouble(since, until)
        reasons = ((node, state.reason_at) for node, state in self._states.items() if state.reason_at is not None)
        for node, time in reasons:
            if node not in at or abs(time - until) < abs(at[node] - until):
                at[node] = time
        there = sorted((abs(time - until), node) for node, time in at.items() if since <= time <= until)
        return [node for _, node in there[:_BESIDE]]

    def name(self, nodes: Iterable[str]) -> None:
        """Each of them has a machine from now on, known by name alone until a record tells more."""
        new = [node for node in dict.fromkeys(nodes) if node not in self._now]
        if new:
            self._store.name_machines(new, self._clock.now())
            self._now = self._store.machines_now()

    def polled(self, nodes: Sequence[NodeState]) -> None:
        """After the edges of this poll are stored."""
        self.name(node.name for node in nodes)
        self._states = {node.name: node for node in nodes}
        changes: dict[str, dict[str, Any]] = {}
        for node in nodes:
            row = self._now[node.name]
            boot = boot_of_poll(row, node)
            if boot is not None:
                self._add(row, [self._asked(node.name, boot)])
            if reads_anew(row, node):
                changes[node.name] = {"boot_time": node.boot_time, "slurmd_start": node.slurmd_start}
            if row.role != "controller" and role_of(node.name, None, self.controllers) == "controller":
                changes.setdefault(node.name, {})["role"] = "controller"  # until a record tells otherwise
        self._change(changes)

    def filled(
        self, rows: Sequence[NodeEvent], edges: Sequence[NodeEventRow], booted: Mapping[str, float | None]
    ) -> None:
        """What slurmdbd told of a time without polls, after its edges are stored. ``booted``: BootTime by node, as
        polled after it."""
        self.name(edge.node for edge in edges)
        earliest: dict[str, float] = {}
        for edge in edges:
            earliest[edge.node] = min(edge.time, earliest.get(edge.node, edge.time))
        older = {node: at for node, at in earliest.items() if at < (self._now[node].since or at)}
        for node, at in older.items():
            self._store.extend_back(node, at)
        if older:
            self._now = self._store.machines_now()
        for node, boot in boots_of_events(rows, booted):
            self._store.add_events_of_node(node, boot.time, [boot])

    def took(self, record: Mapping[str, Any]) -> None:
        """A node record that is believed. Raises StoreError alone: what a node put into its readings must not hold up
        its record."""
        try:
            self._take(record)
        except NcclSlurmError:
            raise
        except Exception as error:
            _log.exception("history of %s", record["node"])
            why = f"record of {record['node']}: {type(error).__name__}: {error}"
            self._store.note("history", why, self._clock.now())

    def _take(self, record: Mapping[str, Any]) -> None:
        seen = sighting_of(record)
        self.name([seen.node])
        row = self._now[seen.node]
        faults = kernel_faults(record)
        if row.seen is not None and seen.at < row.seen:
            self._file_late(seen, faults)
            return
        row = self._identified(seen, row)
        boot = boot_of_record(row, seen)
        if boot is not None:
            faults.append(self._asked(seen.node, boot))
        readings, read = self._read(row, record)
        self._add(row, [*faults, *readings])
        changes = {"seen": seen.at, "role": _role(record, self.controllers), **read}
        if seen.boot_id is not None:
            changes["boot_id"] = seen.boot_id
        if seen.boot_time is not None and (row.boot_time is None or boot is not None):
            changes["boot_time"] = seen.boot_time
        self._change({seen.node: changes})

    def _file_late(self, seen: Sighting, faults: Sequence[MachineEvent]) -> None:
        """A record that is older than what is known: its faults alone, for the machine that it names."""
        known = self._store.machine_row(seen.identity) if seen.identity else None
        if known is not None and not known.shared:
            self._add(known, faults)
        else:
            self._store.add_events_of_node(seen.node, seen.began or seen.at, faults)

    def _identified(self, seen: Sighting, row: MachineRow) -> MachineRow:
        holder = self._holder(seen, row)
        step = decide(seen, row, row.since or 0.0, holder)
        identity = seen.identity or row.identity
        if step.what == "identify":
            self._store.identify(row.number, identity, seen.source)
            self._now[seen.node] = replace(row, identity=identity, source=seen.source)
        elif step.what == "hand-over":
            self._hand_over(seen, identity, step, holder)
        elif step.what == "shared":
            self._store.share_identity(identity)
            why = f"{seen.node} claims the identity of another live node, {identity}: told by its name alone"
            self._store.note("history", why, self._clock.now())
        return self._now[seen.node]

    def _hand_over(self, seen: Sighting, identity: str, step: Step, holder: Holder | None) -> None:
        before = self._now[seen.node].identity
        self._store.hand_over(seen.node, identity, seen.source, step.at, replaced=step.replaced)
        if holder is not None and holder.node not in (None, seen.node):
            del self._now[str(holder.node)]
        now = self._store.machine_row(identity)
        if now is not None:
            self._now[seen.node] = replace(now, since=step.at)
        if step.replaced:
            _log.info("%s: machine %s in the place of %s", seen.node, identity, before)

    def _holder(self, seen: Sighting, row: MachineRow) -> Holder | None:
        if seen.identity is None or seen.identity == row.identity:
            return None
        machine = self._store.machine_row(seen.identity)
        if machine is None:
            return None
        node = next((name for name, one in self._now.items() if one.number == machine.number), None)
        return Holder(machine, node, node is not None and self._is_live(node))

    def _is_live(self, node: str) -> bool:
        """A node that polls have not shown yet counts as live: its identity is not given away."""
        if not self._states:
            return True
        state = self._states.get(node)
        return state is not None and state.state != "DOWN" and not state.flags & {"NOT_RESPONDING", "POWERED_DOWN"}

    def _read(self, row: MachineRow, record: Mapping[str, Any]) -> tuple[list[MachineEvent], dict[str, Any]]:
        """Faults by its GPUs, and what is to be kept of them where there is something new."""
        state = self._states.get(record["node"])
        taken = readings_of(record, state.gpus if state else None)
        known = self._store.readings(row.number) if taken else {}
        events: list[MachineEvent] = []
        for reading in taken:
            found, known = compared(known, reading)
            events += found
        return events, {"readings": known} if taken else {}

    def _asked(self, node: str, boot: MachineEvent) -> MachineEvent:
        """``asked`` where Slurm or HyperPod were told to boot the machine: its last state before says so."""
        last = self._store.last_node_events([node], until=boot.time)
        return told(boot, last[-1] if last else None)

    def _add(self, row: MachineRow, events: Sequence[MachineEvent]) -> None:
        for event in self._store.add_machine_events(row.number, events):
            _log.info("machine %s: %s %s at %.0f %s", row.identity, event.kind, event.name, event.time, event.text)

    def _change(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """By node name."""
        if not changes:
            return
        self._store.update_machines({self._now[node].number: values for node, values in changes.items()})
        for node, values in changes.items():
            known = {name: value for name, value in values.items() if name != "readings"}
            self._now[node] = replace(self._now[node], **known)


def _role(record: Mapping[str, Any], controllers: Sequence[str]) -> str:
    role = role_of(record["node"], record, controllers)
    node_type = str(record["machine"]["role"].get("node_type") or "").lower()
    return "login" if role == "compute" and node_type == "login" else role
