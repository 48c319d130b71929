"""Recommendations for machines, and the audit log of what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, or_, select, update

from nccl_slurm.history.database import Database, fitting
from nccl_slurm.history.rows import ACTIVE, AuditRow, RecommendationRow
from nccl_slurm.history.schema import audit, recommendations

__all__ = ["Recommendations"]

_LISTS = ("evidence", "commands")


class Recommendations(Database):
    def active_recommendations(self, node: str | None = None) -> tuple[RecommendationRow, ...]:
        """Of all machines, or of those that have this name; oldest first."""
        where = [recommendations.c.state.in_(ACTIVE)]
        return self._recommendations(*where, *([recommendations.c.node == node] if node is not None else []))

    def recommendation(self, number: int) -> RecommendationRow | None:
        return next(iter(self._recommendations(recommendations.c.number == number)), None)

    def recommendations_of(self, identities: Iterable[str], run: tuple[str, int, int]) -> tuple[RecommendationRow, ...]:
        """What is active of these machines, and all that ever rested on this run."""
        of_run = and_(
            recommendations.c.cluster == run[0], recommendations.c.raw_id == run[1], recommendations.c.run == run[2]
        )
        active = and_(recommendations.c.identity.in_(sorted(set(identities))), recommendations.c.state.in_(ACTIVE))
        return self._recommendations(or_(active, of_run))

    def recommendations_on(self, node: str, limit: int = 20) -> tuple[RecommendationRow, ...]:
        """All of one node name, newest first."""
        return tuple(reversed(self._recommendations(recommendations.c.node == node)))[:limit]

    def save_recommendations(
        self, changes: Sequence[tuple[RecommendationRow, AuditRow]], *, was: Sequence[RecommendationRow] = ()
    ) -> bool:
        """New ones (without a number) and changed ones, each with its line in the audit log, all or nothing.

        False, and nothing is stored, where one of ``was`` is no longer as it is there: somebody else decided.
        """
        with self._writing() as connection:
            if any(_state_now(connection, row) != (row.state, row.changed) for row in was):
                return False
            for row, line in changes:
                number = _stored(connection, row)
                values = fitting(audit, {**asdict(line), "recommendation": number})
                connection.execute(insert(audit).values(values))
        return True

    def forget_recommendations(self, before: float) -> None:
        """Closed ones that last changed before then; the audit log stays."""
        closed = and_(recommendations.c.state.not_in(ACTIVE), recommendations.c.changed < before)
        with self._writing() as connection:
            connection.execute(delete(recommendations).where(closed))

    def audit_log(
        self, node: str | None = None, limit: int = 1000, *, number: int | None = None
    ) -> tuple[AuditRow, ...]:
        """Newest first; of one node name, or of the recommendation ``number``."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if node is not None:
            query = query.where(audit.c.node == node)
        if number is not None:
            query = query.where(audit.c.recommendation == number)
        with self._reading() as connection:
            return tuple(_audit(row) for row in connection.execute(query))

    def _recommendations(self, *where: ColumnElement[bool]) -> tuple[RecommendationRow, ...]:
        query = select(recommendations).where(*where).order_by(recommendations.c.number)
        with self._reading() as connection:
            return tuple(map(_row, connection.execute(query)))


def _state_now(connection: Connection, row: RecommendationRow) -> tuple[str, float] | None:
    found = connection.execute(
        select(recommendations.c.state, recommendations.c.changed).where(recommendations.c.number == row.number)
    ).first()
    return None if found is None else (found.state, found.changed)


def _stored(connection: Connection, row: RecommendationRow) -> int:
    values: dict[str, Any] = asdict(row)
    number = values.pop("number")
    values.update({name: json.dumps(list(values[name])) for name in _LISTS})
    values = fitting(recommendations, values)
    if number is None:
        made = connection.execute(insert(recommendations).values(values)).inserted_primary_key
        return int(made[0]) if made is not None else 0
    connection.execute(update(recommendations).where(recommendations.c.number == number).values(values))
    return int(number)


def _row(found: Row[Any]) -> RecommendationRow:
    values = dict(found._mapping)
    return RecommendationRow(**{**values, **{name: tuple(json.loads(values[name])) for name in _LISTS}})


def _audit(found: Row[Any]) -> AuditRow:
    values = dict(found._mapping)
    del values["number"]
    return AuditRow(**values)
