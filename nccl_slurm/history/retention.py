"""What is older than a site keeps: found and removed in batches, each one transaction. Events of nodes stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

from sqlalchemy import ColumnElement, Table, delete, func, select

from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.runs import Runs, of_run
from nccl_slurm.history.schema import comments, node_records, notes, outputs, paths, quiet, reports, run_nodes, runs

__all__ = ["Retention"]

_Key = tuple[str, int, int]
#: Documents of what jobs wrote; the rest of a run is small.
_BULK = (node_records, outputs)
_NUMBER = re.compile(r"(?<![\w-])[0-9]+")
_OF_A_RUN = (node_records, outputs, paths, quiet, reports, comments, run_nodes, runs)


class Retention(Runs):
    def old_runs(self, ended_before: float, limit: int) -> tuple[RunRow, ...]:
        """Final runs, oldest first."""
        return self._runs(*_final(ended_before), limit=limit)

    def forget_runs(self, keys: Iterable[_Key]) -> None:
        """All that is stored of these runs."""
        with self._writing() as connection:
            for key in keys:
                for table in _OF_A_RUN:
                    connection.execute(delete(table).where(of_run(table, *key)))

    def forget_documents(self, ended_before: float, limit: int) -> int:
        """Node records and read outputs of final runs; their reports stay. Returns of how many runs."""
        keys = {key for table in _BULK for key in self._keys(table, ended_before, limit)}
        if keys:
            with self._writing() as connection:
                for key in keys:
                    for table in _BULK:
                        connection.execute(delete(table).where(of_run(table, *key)))
        return len(keys)

    def forget_notes(self, before: float) -> None:
        with self._reading() as connection:
            old = connection.scalar(select(func.count()).where(notes.c.at < before))
        if old:
            with self._writing() as connection:
                connection.execute(delete(notes).where(notes.c.at < before))

    def forget_notes_on(self, numbers: Set[str]) -> None:
        """Notes in whose text one of these numbers (ids of jobs) stands, and not as a part of a node's name."""
        with self._writing() as connection:
            found = connection.execute(select(notes.c.number, notes.c.text)).all()
            gone = [row.number for row in found if not numbers.isdisjoint(_NUMBER.findall(row.text))]
            for number in gone:
                connection.execute(delete(notes).where(notes.c.number == number))

    def _keys(self, table: Table, ended_before: float, limit: int) -> Sequence[_Key]:
        same = of_run(runs, table.c.cluster, table.c.raw_id, table.c.run)
        query = select(table.c.cluster, table.c.raw_id, table.c.run).join(runs, same).where(*_final(ended_before))
        with self._reading() as connection:
            return [(row.cluster, row.raw_id, row.run) for row in connection.execute(query.distinct().limit(limit))]


def _final(ended_before: float) -> list[ColumnElement[bool]]:
    """By the start too: that one has an index, and no run ends before it starts."""
    ended = func.coalesce(runs.c.end, runs.c.start) < ended_before
    return [runs.c.status == "final", runs.c.start < ended_before, ended]
