"""A machine's past, put together: its own events, and the states that its node name was in while it had that name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, func, or_, select

from nccl_slurm.history.generations import Generations
from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.packing import EVENT_COLUMNS, unpacked_event
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.history.schema import generations, machine_events, machines, node_events

__all__ = ["Machines"]

#: Machines of one question to the database: 100 of two years are about 80,000 events, 100 MB in Python.
_BATCH = 100
#: Between two polls anything may have happened: daemon.nodes_poll_s by default.
_POLL_S = 30.0

_Place = Row[Any]


class Machines(Generations):
    """``reasons``: by which reasons of nodes are told; set to a site's own rows, if it has some (`reasons.load`)."""

    _reasons: Reasons | None = None

    @property
    def reasons(self) -> Reasons:
        return self._reasons or packaged()

    @reasons.setter
    def reasons(self, reasons: Reasons) -> None:
        self._reasons = reasons

    def machine(self, node: str, since: float = float("-inf")) -> Machine:
        """The machine that has this name now, with its events from ``since`` on.

        A name that no poll has seen: a machine without identity of its own, and what states are stored of the name.
        """
        found = list(self.machines([node], since))
        return found[0] if found else Machine(node, node, events=self._states_alone(node, since))

    def machine_of(self, identity: str, since: float = float("-inf")) -> Machine | None:
        """This machine, whatever its name is or was; None where it was never seen."""
        with self._reading() as connection:
            places = _places(connection, machines.c.identity == identity)
            return next(iter(_machines(connection, self.reasons, places[-1:], since)), None)

    def machines(
        self, nodes: Sequence[str] | None = None, since: float = float("-inf"), *, lately: float = float("-inf")
    ) -> Iterator[Machine]:
        """Those that have a name now (one of ``nodes``), by name; a batch is read at a time.

        ``lately``: runs and states, which are nine events of ten, only from then on.
        """
        with self._reading() as connection:
            has = generations.c.until.is_(None)
            if nodes is None:
                places = _places(connection, has)
            else:
                chunks = (nodes[at : at + _BATCH] for at in range(0, len(nodes), _BATCH))
                places = [one for chunk in chunks for one in _places(connection, has & generations.c.node.in_(chunk))]
        places.sort(key=lambda place: str(place.node))
        for at in range(0, len(places), _BATCH):
            with self._reading() as connection:
                batch = _machines(connection, self.reasons, places[at : at + _BATCH], since, lately)
            yield from batch

    def in_trouble(self, since: float, until: float) -> dict[str, float]:
        """By name: machines that had a fault or an unasked boot in this time, with the last moment of it."""
        what = or_(
            machine_events.c.kind == "fault", and_(machine_events.c.kind == "boot", machine_events.c.name == "unasked")
        )
        has = and_(machine_events.c.machine == generations.c.machine, machine_events.c.time.between(since, until))
        query = select(generations.c.node, func.max(machine_events.c.time)).join(machine_events, has)
        query = query.where(generations.c.until.is_(None), what).group_by(generations.c.node)
        with self._reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def _states_alone(self, node: str, since: float) -> tuple[MachineEvent, ...]:
        with self._reading() as connection:
            wanted = and_(node_events.c.node == node, node_events.c.time >= max(since, 0.0))
            rows = connection.execute(
                select(node_events).where(wanted).order_by(node_events.c.time, node_events.c.number)
            ).all()
        return tuple(_state_event(row, self.reasons) for row in rows)


def _state_event(row: Row[Any], reasons: Reasons) -> MachineEvent:
    """An edge of `node_events`: the reason with its class, and by whom."""
    told = reasons.classify(row.reason, row.reason_by)
    data = {"reason": row.reason, "by": row.reason_by}
    if row.reason is not None:
        data |= {"id": told.id, "class": told.failure_class, "owner": told.owner, "hardware": told.hardware}
    return MachineEvent(
        time=row.time,
        kind="state",
        name=row.state,
        source=row.source,
        text=row.reason or "",
        uncertainty_s=_POLL_S if row.source == "poll" else 1.0,
        data=data,
    )


def _places(connection: Connection, *where: Any) -> list[_Place]:
    columns = (generations, machines.c.identity, machines.c.role)
    query = select(*columns).join(machines, machines.c.number == generations.c.machine).where(*where)
    return list(connection.execute(query.order_by(generations.c.since)).all())


def _machines(
    connection: Connection, reasons: Reasons, places: Sequence[_Place], since: float, lately: float = float("-inf")
) -> list[Machine]:
    """One a place, which is the name that the machine is shown by."""
    numbers = [place.machine for place in places]
    since = max(since, 0.0)  # MariaDB knows no infinity
    lately = max(since, lately)
    of_machine = machine_events.c.machine
    wanted = or_(machine_events.c.kind != "job", machine_events.c.time >= lately)
    query = select(*EVENT_COLUMNS, of_machine).where(of_machine.in_(numbers), machine_events.c.time >= since, wanted)
    events: dict[int, list[MachineEvent]] = {number: [] for number in numbers}
    for row in connection.execute(query.order_by(of_machine, machine_events.c.time)).all():
        events[row[-1]].append(unpacked_event(row))
    for number, states in _states(connection, reasons, numbers, lately).items():
        events[number] += states
    return [
        Machine(place.identity, place.node, place.role, place.since, _in_order(events[place.machine]))
        for place in places
    ]


def _in_order(events: Sequence[MachineEvent]) -> tuple[MachineEvent, ...]:
    """What happened in one second: a state is told after what it follows from."""
    return tuple(sorted(events, key=lambda event: (event.time, event.kind == "state")))


def _states(
    connection: Connection, reasons: Reasons, numbers: Sequence[int], since: float
) -> Mapping[int, list[MachineEvent]]:
    inside = and_(
        node_events.c.node == generations.c.node,
        node_events.c.time >= generations.c.since,
        or_(generations.c.until.is_(None), node_events.c.time < generations.c.until),
    )
    query = select(generations.c.machine, node_events).join(node_events, inside)
    query = query.where(generations.c.machine.in_(numbers), node_events.c.time >= since)
    found: dict[int, list[MachineEvent]] = {}
    for row in connection.execute(query.order_by(node_events.c.time, node_events.c.number)):
        found.setdefault(row.machine, []).append(_state_event(row, reasons))
    return found
