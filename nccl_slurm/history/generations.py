"""Which machine stood behind which node name, from when to when. The decisions are the daemon's (daemon/identity)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from itertools import chain, count
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, func, insert, or_, select, update

from nccl_slurm.history.database import Database, fitting
from nccl_slurm.history.distinct import BOOT_S
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.packing import packed_event
from nccl_slurm.history.rows import ACTIVE, Generation, MachineRow
from nccl_slurm.history.schema import generations, machine_events, machines, node_events, recommendations

__all__ = ["BY_NAME", "Generations", "machine_at"]

#: `MachineRow.source` of a machine that is known by its node name alone.
BY_NAME = "node-name"
_COLUMNS = [column for column in machines.c if column.name != "readings"]
_FIELDS = ("role", "boot_id", "boot_time", "slurmd_start", "seen", "readings")


class Generations(Database):
    def machines_now(self) -> dict[str, MachineRow]:
        """The machine that has each node name now."""
        query = select(generations.c.node, generations.c.since, *_COLUMNS).join(
            machines, machines.c.number == generations.c.machine
        )
        with self._reading() as connection:
            found = connection.execute(query.where(generations.c.until.is_(None))).all()
        return {row.node: _machine(row) for row in found}

    def machine_row(self, identity: str) -> MachineRow | None:
        with self._reading() as connection:
            found = connection.execute(select(*_COLUMNS).where(machines.c.identity == identity)).first()
        return None if found is None else _machine(found)

    def generations(self, node: str) -> tuple[Generation, ...]:
        """All machines that had this name, the oldest first."""
        return self._generations(generations.c.node == node)

    def places(self, identity: str) -> tuple[Generation, ...]:
        """All names that this machine had, the oldest first."""
        return self._generations(machines.c.identity == identity)

    def name_machines(self, nodes: Sequence[str], at: float) -> None:
        """A machine known by name alone for each of these nodes, which have none now: since ``at``, or, where a node
        never had one, since the first state that is stored of it."""
        with self._writing() as connection:
            earliest = select(node_events.c.node, func.min(node_events.c.time)).group_by(node_events.c.node)
            first = _pairs(connection, earliest.where(node_events.c.node.not_in(select(generations.c.node))))
            numbers = _numbers_by_name(connection, nodes)
            rows = [
                {"node": node, "since": min(first.get(node, at), at), "until": None, "machine": numbers[node]}
                for node in nodes
            ]
            if rows:
                connection.execute(insert(generations), rows)

    def identify(self, number: int, identity: str, source: str) -> None:
        """This machine, known by another identity until now, is ``identity``, which no machine has yet."""
        values = fitting(machines, {"identity": identity, "source": source})
        with self._writing() as connection:
            _recommend_for(connection, number, identity)
            connection.execute(update(machines).where(machines.c.number == number).values(values))

    def hand_over(self, node: str, identity: str, source: str, at: float, *, replaced: bool) -> None:
        """From ``at`` on another machine has the name; it loses any other name that it has. Events since then are its.

        ``replaced``: it is certain that the machine was another one before, and both get an event of it.
        """
        with self._writing() as connection:
            number = _find_or_make(connection, identity, source)
            _end(connection, and_(generations.c.machine == number, generations.c.node != node), at)
            before = connection.execute(select(generations).where(*_open(node))).first()
            if before is not None and before.machine != number:
                _end(connection, and_(*_open(node)), at)
                _move_events(connection, before.machine, number, max(at, before.since) if replaced else at)
            if before is not None and not replaced:
                _recommend_for(connection, before.machine, identity, at)
            _begin(connection, node, number, at)
            if replaced and before is not None and before.machine != number:
                _tell_replaced(connection, before.machine, number, at)

    def share_identity(self, identity: str) -> None:
        """Two live nodes claim it: no node is taken for this machine any more, but for the one that has it."""
        with self._writing() as connection:
            connection.execute(update(machines).where(machines.c.identity == identity).values(shared=True))

    def update_machines(self, changes: Mapping[int, Mapping[str, Any]]) -> None:
        """By number: fields of `MachineRow` that records and polls tell, and ``readings`` (see `readings`)."""
        with self._writing() as connection:
            for number, values in changes.items():
                known = {name: _stored(value) for name, value in values.items() if name in _FIELDS}
                this = update(machines).where(machines.c.number == number)
                connection.execute(this.values(fitting(machines, known)))

    def readings(self, number: int) -> dict[str, Any]:
        """What the newest node record read of the machine's GPUs; empty where none did."""
        with self._reading() as connection:
            text = connection.scalar(select(machines.c.readings).where(machines.c.number == number))
        return dict(json.loads(text)) if text else {}

    def extend_back(self, node: str, since: float) -> None:
        """Something older than all that was known of the node. A machine whose identity is known was not seen then:
        what was before it is another one, known by name alone."""
        with self._writing() as connection:
            query = select(generations, machines.c.source).join(machines, machines.c.number == generations.c.machine)
            mine = query.where(generations.c.node == node).order_by(generations.c.since)
            first = connection.execute(mine.limit(1)).first()
            if first is None or first.since <= since:
                return
            this = and_(generations.c.node == node, generations.c.since == first.since)
            if first.source == BY_NAME:
                connection.execute(update(generations).where(this).values(since=since))
            else:
                number = _numbers_by_name(connection, [node])[node]
                row = {"node": node, "since": since, "until": first.since, "machine": number}
                connection.execute(insert(generations).values(row))

    def _generations(self, *where: ColumnElement[bool]) -> tuple[Generation, ...]:
        query = select(generations, machines.c.identity).join(machines, machines.c.number == generations.c.machine)
        with self._reading() as connection:
            found = connection.execute(query.where(*where).order_by(generations.c.since)).all()
        return tuple(Generation(row.node, row.identity, row.since, row.until) for row in found)


def _stored(value: object) -> object:
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else value


def machine_at(connection: Connection, node: str, at: float) -> int | None:
    """The number of the machine that had the name then."""
    covers = or_(generations.c.until.is_(None), generations.c.until > at)
    query = select(generations.c.machine).where(generations.c.node == node, generations.c.since <= at, covers)
    return connection.scalar(query.order_by(generations.c.since.desc()).limit(1))


def _pairs(connection: Connection, query: Select[Any]) -> dict[Any, Any]:
    return {row[0]: row[1] for row in connection.execute(query)}


def _machine(row: Row[Any]) -> MachineRow:
    values = dict(row._mapping)
    values.pop("node", None)
    return MachineRow(**{**values, "shared": bool(values["shared"])})


def _open(node: str) -> tuple[ColumnElement[bool], ...]:
    return (generations.c.node == node, generations.c.until.is_(None))


def _numbers_by_name(connection: Connection, nodes: Sequence[str]) -> dict[str, int]:
    """New machines, known by these names alone."""
    known = set(connection.scalars(select(machines.c.identity)))
    free = {node: _unused(node, known) for node in nodes}
    rows = [{"identity": name, "source": BY_NAME, "shared": False, "role": "unknown"} for name in free.values()]
    if rows:
        connection.execute(insert(machines), [fitting(machines, row) for row in rows])
    by_name = _pairs(connection, select(machines.c.identity, machines.c.number))
    return {node: by_name[name] for node, name in free.items()}


def _unused(node: str, known: Set[str]) -> str:
    """The node's name, with a number where a machine of an earlier time is known by the name alone."""
    names = chain([node], (f"{node}#{number}" for number in count(2)))
    return next(name for name in names if name not in known)


def _find_or_make(connection: Connection, identity: str, source: str) -> int:
    values = fitting(machines, {"identity": identity, "source": source, "shared": False, "role": "unknown"})
    found = connection.scalar(select(machines.c.number).where(machines.c.identity == values["identity"]))
    if found is not None:
        return int(found)
    made = connection.execute(insert(machines).values(values)).inserted_primary_key
    return int(made[0]) if made else 0


def _begin(connection: Connection, node: str, number: int, at: float) -> None:
    """A generation that would begin before the one that it follows takes its place."""
    later = and_(generations.c.node == node, generations.c.since >= at)
    connection.execute(delete(generations).where(later))
    connection.execute(
        insert(generations).values(**fitting(generations, {"node": node}), since=at, until=None, machine=number)
    )


def _end(connection: Connection, which: ColumnElement[bool], at: float) -> None:
    still = and_(which, generations.c.until.is_(None))
    connection.execute(update(generations).where(still, generations.c.since < at).values(until=at))
    connection.execute(delete(generations).where(still, generations.c.since >= at))


def _move_events(connection: Connection, number: int, to: int, since: float) -> None:
    """What both have (a record was taken in before) is the receiver's already."""
    theirs = machine_events.alias()
    both = select(theirs.c.key).where(
        theirs.c.machine == to, theirs.c.time == machine_events.c.time, theirs.c.key == machine_events.c.key
    )
    mine = and_(machine_events.c.machine == number, machine_events.c.time >= since)
    there = connection.execute(select(machine_events.c.time, machine_events.c.key).where(mine, both.exists())).all()
    for at, key in there:
        connection.execute(delete(machine_events).where(mine, machine_events.c.time == at, machine_events.c.key == key))
    connection.execute(update(machine_events).where(mine).values(machine=to))


def _recommend_for(connection: Connection, number: int, identity: str, since: float = 0.0) -> None:
    """What is asked of a machine that was told by its name stays when its identity is learned."""
    name = select(machines.c.identity).where(machines.c.number == number).scalar_subquery()
    asked = (recommendations.c.identity == name, recommendations.c.opened >= since, recommendations.c.state.in_(ACTIVE))
    values = fitting(recommendations, {"identity": identity})
    connection.execute(update(recommendations).where(*asked).values(values))


def _tell_replaced(connection: Connection, before: int, after: int, at: float) -> None:
    """The start of the new machine looked like a boot of the old one."""
    names = _pairs(
        connection, select(machines.c.number, machines.c.identity).where(machines.c.number.in_([before, after]))
    )
    start = (machine_events.c.kind == "boot", machine_events.c.time.between(at - BOOT_S, at + BOOT_S))
    connection.execute(delete(machine_events).where(machine_events.c.machine.in_([before, after]), *start))
    for number, other in ((before, after), (after, before)):
        name = "gone" if number == before else "came"
        event = MachineEvent(at, "replaced", name, "record", data={"other": names[other]})
        row = packed_event(number, event)
        same = (machine_events.c.machine == number, machine_events.c.time == at, machine_events.c.key == row["key"])
        if connection.scalar(select(machine_events.c.key).where(*same)) is None:
            connection.execute(insert(machine_events).values(row))
