"""Events of machines: added once, changed with a new verdict, counted and forgotten with time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from nccl_slurm.history.database import Database
from nccl_slurm.history.distinct import BOOT_S, distinct
from nccl_slurm.history.generations import machine_at
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.packing import EVENT_COLUMNS, packed_event, unpacked_event
from nccl_slurm.history.rollup import DAY_S, MONTH_S, rolled_up
from nccl_slurm.history.schema import generations, machine_events, machines, node_events

__all__ = ["Kept", "MachineEvents"]

#: Events older than a new one by so much may still be the same (a burst that went on, a boot of uncertain time).
_NEAR_S = 3600.0 + BOOT_S


class Kept(NamedTuple):
    """Times before which well-ended runs are counted by the day and by the month, and before which all events go."""

    daily: float
    monthly: float
    gone: float


class MachineEvents(Database):
    def add_machine_events(self, number: int, events: Iterable[MachineEvent]) -> list[MachineEvent]:
        """Those that were new, in order of time; the same fault within 5 s and the same boot are one."""
        wanted = list(events)
        if not wanted:
            return []
        first, last = min(event.time for event in wanted), max(event.time for event in wanted)
        near = machine_events.c.time.between(first - _NEAR_S, last + _NEAR_S)
        with self._writing() as connection:
            new = distinct(wanted, _events(connection, machine_events.c.machine == number, near))
            _insert(connection, number, new)
        return new

    def add_events_of_node(self, node: str, at: float, events: Iterable[MachineEvent]) -> list[MachineEvent]:
        """The same, for the machine that had the name ``node`` at that time; none where nobody knows which it was."""
        with self._reading() as connection:
            number = machine_at(connection, node, at)
        return [] if number is None else self.add_machine_events(number, events)

    def set_outcomes(
        self, outcomes: Mapping[str, MachineEvent], start: float | None, counted_before: float = 0.0
    ) -> None:
        """One run's end for each of its nodes; takes the place of what an earlier verdict said of the run.

        It goes to the machine that had the name when the run started, else when it ended. A run that went well and
        ended before ``counted_before`` is in a count already, unless an earlier verdict said that it failed.
        """
        with self._writing() as connection:
            for node, event in outcomes.items():
                number = None if start is None else machine_at(connection, node, start)
                number = machine_at(connection, node, event.time) if number is None else number
                if number is not None:
                    row = packed_event(number, event)
                    same = [machine_events.c[name] == row[name] for name in ("machine", "time", "key")]
                    was_there = connection.execute(delete(machine_events).where(*same)).rowcount
                    if was_there or event.name != "well" or event.time >= counted_before:
                        connection.execute(insert(machine_events).values(row))

    def forget_outcomes(self, outcomes: Mapping[str, MachineEvent]) -> None:
        """What `set_outcomes` stored, on whatever machine; a run that was counted can't be told any more."""
        with self._writing() as connection:
            for node, event in outcomes.items():
                row = packed_event(0, event)
                had = select(generations.c.machine).where(generations.c.node == node)
                this = (machine_events.c.time == row["time"], machine_events.c.key == row["key"])
                for number in connection.scalars(had.distinct()).all():
                    connection.execute(delete(machine_events).where(machine_events.c.machine == number, *this))

    def machine_numbers(self, after: int, limit: int) -> tuple[int, ...]:
        """Of machines, in order, behind ``after``."""
        query = select(machines.c.number).where(machines.c.number > after).order_by(machines.c.number).limit(limit)
        with self._reading() as connection:
            return tuple(connection.scalars(query))

    def tidy_machines(self, numbers: Sequence[int], kept: Kept) -> None:
        """Counts what is to be counted and forgets what is too old; machines of which nothing is left go."""
        kept = Kept(*(max(at, 0.0) for at in kept))  # MariaDB knows no infinity
        with self._writing() as connection:
            for number in numbers:
                _roll_up(connection, number, kept)
                _forget(connection, number, kept.gone)


def _events(connection: Connection, *where: ColumnElement[bool]) -> list[MachineEvent]:
    query = select(*EVENT_COLUMNS).where(*where).order_by(machine_events.c.time, machine_events.c.key)
    return [unpacked_event(row) for row in connection.execute(query)]


def _insert(connection: Connection, number: int, events: Sequence[MachineEvent]) -> None:
    if events:
        connection.execute(insert(machine_events), [packed_event(number, event) for event in events])


def _roll_up(connection: Connection, number: int, kept: Kept) -> None:
    well = (machine_events.c.machine == number, machine_events.c.kind == "job", machine_events.c.name == "well")
    old = (*well, machine_events.c.time < kept.daily)
    before = _events(connection, *old)
    after = rolled_up(rolled_up(before, kept.daily, DAY_S), kept.monthly, MONTH_S)
    if after != before:
        connection.execute(delete(machine_events).where(*old))
        _insert(connection, number, after)


def _forget(connection: Connection, number: int, gone: float) -> None:
    mine = machine_events.c.machine == number
    connection.execute(delete(machine_events).where(mine, machine_events.c.time < gone))
    places = connection.execute(select(generations).where(generations.c.machine == number)).all()
    for place in places:
        _forget_states(connection, place.node, min(gone, place.until or gone))
    ended = (generations.c.machine == number, generations.c.until < gone)
    connection.execute(delete(generations).where(*ended))
    left = select(generations.c.node).where(generations.c.machine == number).limit(1)
    if connection.scalar(left) is None:
        connection.execute(delete(machine_events).where(mine))
        connection.execute(delete(machines).where(machines.c.number == number))


def _forget_states(connection: Connection, node: str, before: float) -> None:
    """All but the newest of the old ones: that is the state that the node was in from then on."""
    old = (node_events.c.node == node, node_events.c.time < before)
    last = connection.scalar(select(node_events.c.time).where(*old).order_by(node_events.c.time.desc()).limit(1))
    if last is not None:
        connection.execute(delete(node_events).where(*old, node_events.c.time < last))
