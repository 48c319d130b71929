"""Which way each run's data took between and inside its nodes, to hold later runs on the same machines against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import case, insert, select, update

from nccl_slurm.history.database import Database, fitting, packed, unpacked
from nccl_slurm.history.rows import PathsRow
from nccl_slurm.history.runs import of_run
from nccl_slurm.history.schema import paths, runs

__all__ = ["Paths"]

_Ways = Mapping[str, Mapping[str, Sequence[str]]]


class Paths(Database):
    def save_paths(self, cluster: str, raw_id: int, run: int, machines: str, ways: _Ways) -> None:
        """``machines``: a digest of all machine identities; ``ways``: identity → what → values. Replaces what was."""
        values: dict[str, Any] = {"machines": machines, "paths": packed(ways)}
        with self._writing() as connection:
            this = update(paths).where(of_run(paths, cluster, raw_id, run)).values(fitting(paths, values))
            if not connection.execute(this).rowcount:
                key = {"cluster": cluster, "raw_id": raw_id, "run": run}
                connection.execute(insert(paths).values(fitting(paths, {**key, **values})))

    def earlier_paths(self, cluster: str, uid: int, machines: str, before: float) -> PathsRow | None:
        """Of this user's last run on exactly these machines that began before that time; one that completed first."""
        same = of_run(runs, paths.c.cluster, paths.c.raw_id, paths.c.run)
        query = select(runs.c.id, runs.c.run, paths.c.paths).join(runs, same)
        query = query.where(paths.c.cluster == cluster, paths.c.machines == machines)
        query = query.where(runs.c.uid == uid, runs.c.start < before)
        completed = case((runs.c.state == "COMPLETED", 0), else_=1)
        with self._reading() as connection:
            found = connection.execute(query.order_by(completed, runs.c.start.desc()).limit(1)).first()
        return None if found is None else PathsRow(found.id, found.run, unpacked(found.paths))
