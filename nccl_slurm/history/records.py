"""Node records and reports: JSON documents of a run, compressed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from nccl_slurm.history.database import Database, chunks, fitting, packed, unpacked, unpacked_record
from nccl_slurm.history.rows import RecordRow, ReportRow
from nccl_slurm.history.runs import of_run
from nccl_slurm.history.schema import node_records, reports, run_nodes, runs
from nccl_slurm.history.schema import quiet as quiet_runs

__all__ = ["Records"]

_LONGEST_S = 30 * 86400.0


class Records(Database):
    def add_record(
        self,
        cluster: str,
        raw_id: int,
        run: int,
        record: Mapping[str, Any],
        *,
        received: float,
        late: bool = False,
        quiet: bool = False,
    ) -> bool:
        """Store a node record (valid by its schema); it takes the place of an older one of that node. ``quiet``: it
        says that the job's lines are not to be read.

        False, and nothing changes, where this one or a newer one is there. A run that was final is to be judged again,
        in the same transaction: a daemon that dies after it still knows.
        """
        data = packed(record)
        digest = hashlib.sha256(data).hexdigest()
        values = {"cluster": cluster, "raw_id": raw_id, "run": run, "node": record["node"], "sha256": digest}
        rest = {"received": received, "written": record["written"], "late": late, "record": data}
        same = (of_run(node_records, cluster, raw_id, run), node_records.c.node == record["node"])
        known = or_(node_records.c.sha256 == digest, node_records.c.written > record["written"])
        again = (of_run(runs, cluster, raw_id, run), runs.c.status == "final", runs.c.disposition != "ignore")
        with self._writing() as connection:
            if connection.scalar(select(node_records.c.run).where(*same, known).limit(1)) is not None:
                return False
            connection.execute(delete(node_records).where(*same))
            connection.execute(insert(node_records).values(fitting(node_records, {**values, **rest})))
            connection.execute(update(runs).where(*again).values(status="settling"))
            if quiet:
                _keep_quiet(connection, cluster, raw_id, run)
        return True

    def is_quiet(self, cluster: str, raw_id: int, run: int) -> bool:
        """Whether one of its records said so; reads none of them."""
        query = select(quiet_runs.c.run).where(of_run(quiet_runs, cluster, raw_id, run))
        with self._reading() as connection:
            return connection.scalar(query.limit(1)) is not None

    def records(self, cluster: str, raw_id: int, run: int) -> tuple[RecordRow, ...]:
        """One a node, the newest by the node's own stamp; by node name."""
        query = select(node_records).where(of_run(node_records, cluster, raw_id, run))
        order = (node_records.c.node, node_records.c.written, node_records.c.received)
        with self._reading() as connection:
            found = [dict(row._mapping) for row in connection.execute(query.order_by(*order))]
        newest = {row["node"]: row for row in found}
        for row in newest.values():
            del row["written"]
            row["record"] = unpacked_record(row["record"])
        return tuple(RecordRow(**row) for row in newest.values())

    def record_nodes(self, cluster: str, raw_id: int, run: int) -> frozenset[str]:
        """Nodes whose record is there; does not read the records."""
        query = select(node_records.c.node).where(of_run(node_records, cluster, raw_id, run))
        with self._reading() as connection:
            return frozenset(connection.scalars(query))

    def record_nodes_of_settling(self) -> dict[tuple[str, int, int], set[str]]:
        """The same of all runs that settle, those without any left out: one question, however many runs wait."""
        key = (node_records.c.cluster, node_records.c.raw_id, node_records.c.run)
        query = select(*key, node_records.c.node).join(runs, of_run(runs, *key)).where(runs.c.status == "settling")
        found: dict[tuple[str, int, int], set[str]] = {}
        with self._reading() as connection:
            for cluster, raw_id, run, node in connection.execute(query):
                found.setdefault((cluster, raw_id, run), set()).add(node)
        return found

    def missing_records(self, since: float) -> tuple[tuple[int, str], ...]:
        """Raw job id and node of final runs that ended since then, where that node's record is not there."""
        key = (runs.c.cluster, runs.c.raw_id, runs.c.run)
        there = select(node_records.c.run).where(of_run(node_records, *key), node_records.c.node == run_nodes.c.node)
        query = select(runs.c.raw_id, run_nodes.c.node).join(run_nodes, of_run(run_nodes, *key))
        # the index is on start; a job of more than 30 days is not asked for
        ended = (runs.c.status == "final", runs.c.start >= since - _LONGEST_S, runs.c.end >= since)
        with self._reading() as connection:
            found = connection.execute(query.where(*ended, ~there.exists()).distinct())
            return tuple((int(raw_id), node) for raw_id, node in found)

    def observed(self, nodes: Sequence[str]) -> frozenset[str]:
        """Those of these nodes of which any record is there."""
        query = select(node_records.c.node).distinct()
        with self._reading() as connection:
            pieces = [query.where(node_records.c.node.in_(names)) for names in chunks(nodes)]
            return frozenset(node for piece in pieces for node in connection.scalars(piece))

    def save_report(self, cluster: str, raw_id: int, run: int, report: Mapping[str, Any], at: float) -> int:
        """The revision: a new one, or the newest where that is equal."""
        data = packed(report)
        newest = select(func.max(reports.c.revision)).where(of_run(reports, cluster, raw_id, run))
        with self._writing() as connection:
            revision = connection.scalar(newest) or 0
            there = select(reports.c.report).where(
                of_run(reports, cluster, raw_id, run), reports.c.revision == revision
            )
            if connection.scalar(there) == data:
                return revision
            values = {"cluster": cluster, "raw_id": raw_id, "run": run, "revision": revision + 1}
            connection.execute(insert(reports).values(**fitting(reports, values), at=at, report=data))
        return revision + 1

    def report(self, cluster: str, raw_id: int, run: int, revision: int | None = None) -> ReportRow | None:
        """The newest revision, or the one asked for."""
        query = select(reports).where(of_run(reports, cluster, raw_id, run))
        if revision is not None:
            query = query.where(reports.c.revision == revision)
        with self._reading() as connection:
            found = connection.execute(query.order_by(reports.c.revision.desc()).limit(1)).first()
        if found is None:
            return None
        values = dict(found._mapping)
        return ReportRow(**{**values, "report": unpacked(values["report"])})

    def report_times(self, since: float) -> tuple[tuple[tuple[str, int, int], str, float], ...]:
        """Key and job id of each run whose newest report was made since then, and when."""
        at = func.max(reports.c.at).label("at")
        same = of_run(runs, reports.c.cluster, reports.c.raw_id, reports.c.run)
        query = select(reports.c.cluster, reports.c.raw_id, reports.c.run, runs.c.id, at).join(runs, same)
        query = query.where(reports.c.at >= since)
        query = query.group_by(reports.c.cluster, reports.c.raw_id, reports.c.run, runs.c.id)
        with self._reading() as connection:
            found = connection.execute(query).all()
        return tuple(((cluster, raw_id, run), job_id, float(made)) for cluster, raw_id, run, job_id, made in found)


def _keep_quiet(connection: Connection, cluster: str, raw_id: int, run: int) -> None:
    there = select(quiet_runs.c.run).where(of_run(quiet_runs, cluster, raw_id, run))
    if connection.scalar(there.limit(1)) is None:
        connection.execute(insert(quiet_runs).values(cluster=cluster, raw_id=raw_id, run=run))
