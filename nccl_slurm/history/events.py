"""Edges of node states, and notes for ``nccl-slurm status``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, Select, and_, delete, func, insert, select, update

from nccl_slurm.history.database import CHUNK, Database, chunks, fitting
from nccl_slurm.history.rows import NodeEventRow, Note
from nccl_slurm.history.schema import node_events, notes

__all__ = ["NOTES_KEPT", "Events"]

#: Notes kept of each kind; older ones go.
NOTES_KEPT = 200


class Events(Database):
    def add_node_events(self, events: Iterable[NodeEventRow]) -> int:
        """Store edges; those that are there already are left out. Returns how many were new."""
        rows = {_digest(event): event for event in events}
        if not rows:
            return 0
        with self._writing() as connection:
            known: set[str] = set()
            for chunk in chunks(list(rows)):
                known.update(connection.scalars(select(node_events.c.digest).where(node_events.c.digest.in_(chunk))))
            new = [{**asdict(event), "digest": digest} for digest, event in rows.items() if digest not in known]
            if new:
                connection.execute(insert(node_events), [fitting(node_events, row) for row in new])
        return len(new)

    def node_events(
        self, nodes: Sequence[str] | None = None, since: float | None = None, until: float | None = None
    ) -> tuple[NodeEventRow, ...]:
        """Edges inside the window, of these nodes or of all, oldest first."""
        query = select(node_events)
        if since is not None:
            query = query.where(node_events.c.time >= since)
        if until is not None and math.isfinite(until):  # MariaDB knows no infinity
            query = query.where(node_events.c.time <= until)
        pieces = [query] if nodes is None else [query.where(node_events.c.node.in_(chunk)) for chunk in chunks(nodes)]
        with self._reading() as connection:
            found = [row for piece in pieces for row in connection.execute(piece)]
        return tuple(map(_event, sorted(found, key=lambda row: (row.time, row.number))))

    def last_node_events(
        self, nodes: Sequence[str] | None = None, until: float | None = None
    ) -> tuple[NodeEventRow, ...]:
        """The newest edge of each node (up to ``until``): the state it is, or was, in. By node name."""
        with self._reading() as connection:
            found = [
                row
                for names in ([None] if nodes is None else chunks(nodes))
                for row in connection.execute(_newest(names, until))
            ]
        return tuple(map(_event, {row.node: row for row in found}.values()))

    def note(self, kind: str, text: str, at: float) -> None:
        """Remember something for ``status``; equal ones are counted, and `NOTES_KEPT` of a kind are kept."""
        values = fitting(notes, {"kind": kind, "text": text, "at": at, "count": 1})
        same = (notes.c.kind == values["kind"], notes.c.text == values["text"])
        with self._writing() as connection:
            again = update(notes).where(*same).values(at=at, count=notes.c.count + 1)
            if connection.execute(again).rowcount:
                return
            connection.execute(insert(notes).values(values))
            newest = select(notes.c.number).where(notes.c.kind == values["kind"])
            newest = newest.order_by(notes.c.at.desc(), notes.c.number.desc()).offset(NOTES_KEPT).limit(CHUNK)
            old = connection.scalars(newest).all()
            if old:
                connection.execute(delete(notes).where(notes.c.number.in_(old)))

    def notes(self, kind: str | None = None, since: float | None = None) -> tuple[Note, ...]:
        """Newest first."""
        query = select(notes).order_by(notes.c.at.desc(), notes.c.number.desc())
        if kind is not None:
            query = query.where(notes.c.kind == kind)
        if since is not None:
            query = query.where(notes.c.at >= since)
        with self._reading() as connection:
            return tuple(Note(row.kind, row.text, row.at, row._mapping["count"]) for row in connection.execute(query))


def _digest(event: NodeEventRow) -> str:
    return hashlib.sha256(json.dumps(asdict(event), sort_keys=True).encode("ascii")).hexdigest()


def _newest(nodes: Sequence[str] | None, until: float | None) -> Select[Any]:
    """By node; of edges of one time the one that was stored last comes last. The index tells each newest time: of
    730,000 edges it takes a tenth of what a rank over all of them does."""
    times = select(node_events.c.node, func.max(node_events.c.time).label("time")).group_by(node_events.c.node)
    if nodes is not None:
        times = times.where(node_events.c.node.in_(nodes))
    if until is not None:
        times = times.where(node_events.c.time <= until)
    newest = times.subquery()
    same = and_(node_events.c.node == newest.c.node, node_events.c.time == newest.c.time)
    return select(node_events).join(newest, same).order_by(node_events.c.node, node_events.c.number)


def _event(row: Row[Any]) -> NodeEventRow:
    return NodeEventRow(row.node, row.time, row.state, row.reason, row.reason_by, row.source, row.identity)
