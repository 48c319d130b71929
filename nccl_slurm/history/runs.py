"""Runs: stored, found again by what users type, listed, counted a node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from nccl_slurm.history.database import Database, chunks, fitting
from nccl_slurm.history.rows import NodeSeen, RunRow
from nccl_slurm.history.schema import run_nodes, runs
from nccl_slurm.model import Step

__all__ = ["Runs", "of_run"]

#: States of runs that did not fail, as far as Slurm knows.
_WELL = ("COMPLETED", "PREEMPTED", "REQUEUED")
#: Log files are named anew at least so often; the index on start keeps the search short.
_NEAR_S = 30 * 86400.0
#: Runs in one transaction: others who write to the store wait for less than a second.
_TOGETHER = 250
_LISTS = ("nodes", "steps", "log_paths")


class Runs(Database):
    def upsert_run(self, row: RunRow) -> None:
        """Insert the run, or replace all that is stored of it."""
        self.upsert_runs([row])

    def upsert_runs(self, rows: Sequence[RunRow]) -> None:
        """Each as `upsert_run`; those of an array's end in a few transactions, for the disk is synced with each."""
        for at in range(0, len(rows), _TOGETHER):
            with self._writing() as connection:
                for row in rows[at : at + _TOGETHER]:
                    _upsert(connection, row)

    def run(self, cluster: str, raw_id: int, run: int) -> RunRow | None:
        return next(iter(self._runs(of_run(runs, cluster, raw_id, run))), None)

    def runs_of_raw(self, cluster: str, raw_id: int) -> tuple[RunRow, ...]:
        """All runs of one raw job id, oldest first."""
        return tuple(self.runs_of_all(cluster, [raw_id])[raw_id])

    def runs_of_all(self, cluster: str, raw_ids: Iterable[int]) -> dict[int, list[RunRow]]:
        """As `runs_of_raw`, by raw id; those without a run have an empty list."""
        found: dict[int, list[RunRow]] = {raw_id: [] for raw_id in raw_ids}
        with self._reading() as connection:
            for raw_id, known in found.items():
                known += map(_row, connection.execute(_OF_RAW, {"of_cluster": cluster, "of_raw_id": raw_id}))
        return found

    def runs_of(self, job_id: str) -> tuple[RunRow, ...]:
        """Runs of a job id as users type it, oldest first.

        ``42`` of an array or of a heterogeneous job is no single job: the runs of all its parts.
        """
        exact = self._runs(runs.c.id == job_id)
        if exact or not re.fullmatch(r"[0-9]{1,10}", job_id, re.ASCII):
            return exact
        parts = (runs.c.id.startswith(job_id + sign, autoescape=True) for sign in "_+")
        return self._runs(or_(runs.c.raw_id == int(job_id), *parts))

    def open_runs(self) -> tuple[RunRow, ...]:
        """Runs that are not final, oldest first."""
        return self._runs(runs.c.status != "final")

    def judge_again(self, keys: Iterable[tuple[str, int, int]]) -> None:
        """Of these runs those that have a verdict."""
        with self._writing() as connection:
            for key in keys:
                final = (of_run(runs, *key), runs.c.status == "final", runs.c.disposition != "ignore")
                connection.execute(update(runs).where(*final).values(status="settling"))

    def shares_output(self, run: RunRow) -> bool:
        """Another job (or task of the array) has the same stdout file. Runs of one job truncate it when they begin."""
        if run.stdout is None:
            return False
        near = runs.c.start.between((run.start or 0.0) - _NEAR_S, (run.start or 0.0) + _NEAR_S)
        same = select(runs.c.raw_id).where(near, runs.c.stdout == run.stdout, runs.c.raw_id != run.raw_id).limit(1)
        with self._reading() as connection:
            return connection.scalar(same) is not None

    def list_runs(
        self,
        *,
        failed: bool = False,
        since: float | None = None,
        until: float | None = None,
        node: str | None = None,
        user: str | None = None,
        limit: int = 100,
    ) -> tuple[RunRow, ...]:
        """Newest first. ``failed``: diagnosed, or ended badly and out of scope. The window holds runs that touch it."""
        where: list[ColumnElement[bool]] = []
        if failed:
            ended_badly = and_(runs.c.disposition == "record", runs.c.state.not_in(_WELL))
            where.append(or_(runs.c.disposition == "diagnose", ended_badly))
        if since is not None:
            where.append(or_(runs.c.end.is_(None), runs.c.end >= since))
        if until is not None:
            where.append(or_(runs.c.start.is_(None), runs.c.start <= until))
        if node is not None:
            where.append(select(run_nodes.c.node).where(_same_run(), run_nodes.c.node == node).exists())
        if user is not None:
            where.append(runs.c.user == user)
        query = select(runs).where(*where).order_by(runs.c.start.desc(), runs.c.raw_id.desc(), runs.c.run.desc())
        with self._reading() as connection:
            return tuple(map(_row, connection.execute(query.limit(limit))))

    def nodes_seen(self) -> tuple[NodeSeen, ...]:
        """Every node that a stored run had, by name."""
        bad = func.sum(case((runs.c.disposition == "diagnose", 1), else_=0))
        last = func.max(func.coalesce(runs.c.end, runs.c.start))
        query = select(run_nodes.c.node, func.count(), bad, last).join(runs, _same_run())
        with self._reading() as connection:
            found = connection.execute(query.group_by(run_nodes.c.node).order_by(run_nodes.c.node)).all()
        return tuple(NodeSeen(node, int(count), int(diagnosed or 0), at) for node, count, diagnosed, at in found)

    def runs_lost(self, nodes: Sequence[str], since: float) -> dict[str, int]:
        """How many diagnosed runs each of these nodes had that began since then; those without any are left out."""
        began = (runs.c.disposition == "diagnose", runs.c.start >= since)
        query = select(run_nodes.c.node, func.count()).join(runs, _same_run()).where(*began).group_by(run_nodes.c.node)
        with self._reading() as connection:
            found = [
                row for names in chunks(nodes) for row in connection.execute(query.where(run_nodes.c.node.in_(names)))
            ]
        return {node: int(count) for node, count in found}

    def _runs(self, *where: ColumnElement[bool], limit: int | None = None) -> tuple[RunRow, ...]:
        query = _oldest_first(*where).limit(limit)
        with self._reading() as connection:
            return tuple(map(_row, connection.execute(query)))


def of_run(table: Table, cluster: Any, raw_id: Any, run: Any) -> ColumnElement[bool]:
    """Rows of one run; the key is of values or of columns."""
    return and_(table.c.cluster == cluster, table.c.raw_id == raw_id, table.c.run == run)


def _same_run() -> ColumnElement[bool]:
    return of_run(run_nodes, runs.c.cluster, runs.c.raw_id, runs.c.run)


def _oldest_first(*where: ColumnElement[bool]) -> Select[Any]:
    return select(runs).where(*where).order_by(runs.c.start, runs.c.raw_id, runs.c.run)


#: An array's end is thousands of these in a row. To put such a statement together takes three times as long as SQLite
#: takes for it.
_BOUND: tuple[Any, ...] = (bindparam("of_cluster"), bindparam("of_raw_id"), bindparam("of_run"))
_REPLACE = update(runs).where(of_run(runs, *_BOUND))
_INSERT = insert(runs)
_OF_RAW = _oldest_first(runs.c.cluster == _BOUND[0], runs.c.raw_id == _BOUND[1])
_NODES = select(run_nodes.c.node).where(of_run(run_nodes, *_BOUND))


def _key(cluster: str, raw_id: int, run: int) -> dict[str, Any]:
    """Of a run, for `_BOUND`."""
    return {"of_cluster": cluster, "of_raw_id": raw_id, "of_run": run}


def _upsert(connection: Connection, row: RunRow) -> None:
    key, values = _key(row.cluster, row.raw_id, row.run), fitting(runs, _values(row))
    if not connection.execute(_REPLACE, {**values, **key}).rowcount:
        connection.execute(_INSERT, values)
    _keep_nodes(connection, key, row.nodes)


def _keep_nodes(connection: Connection, key: dict[str, Any], nodes: Iterable[str]) -> None:
    wanted = set(nodes)
    stored = set(connection.scalars(_NODES, key))
    if stored - wanted:
        gone = run_nodes.c.node.in_(sorted(stored - wanted))
        connection.execute(delete(run_nodes).where(of_run(run_nodes, *key.values()), gone))
    if wanted - stored:
        names = ("cluster", "raw_id", "run")
        rows = [{**dict(zip(names, key.values(), strict=True)), "node": node} for node in sorted(wanted - stored)]
        connection.execute(insert(run_nodes), [fitting(run_nodes, row) for row in rows])


def _values(row: RunRow) -> dict[str, Any]:
    values = asdict(row)
    return {**values, **{name: json.dumps(list(values[name])) for name in _LISTS}}


def _row(found: Row[Any]) -> RunRow:
    values = dict(found._mapping)
    lists: dict[str, Sequence[Any]] = {name: json.loads(values.pop(name)) for name in _LISTS}
    steps = tuple(Step(**{**step, "nodes": tuple(step["nodes"])}) for step in lists["steps"])
    return RunRow(**values, nodes=tuple(lists["nodes"]), log_paths=tuple(lists["log_paths"]), steps=steps)
