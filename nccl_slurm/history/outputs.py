"""What was read of a job's own output, one a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update

from nccl_slurm.history.database import Database, fitting, packed, unpacked
from nccl_slurm.history.runs import of_run
from nccl_slurm.history.schema import outputs

__all__ = ["Outputs"]


class Outputs(Database):
    def save_output(self, cluster: str, raw_id: int, run: int, output: Mapping[str, Any]) -> None:
        """Replaces what was there."""
        data = packed(output)
        with self._writing() as connection:
            this = update(outputs).where(of_run(outputs, cluster, raw_id, run))
            if not connection.execute(this.values(output=data)).rowcount:
                values = {"cluster": cluster, "raw_id": raw_id, "run": run, "output": data}
                connection.execute(insert(outputs).values(fitting(outputs, values)))

    def output(self, cluster: str, raw_id: int, run: int) -> Any | None:
        with self._reading() as connection:
            data = connection.scalar(select(outputs.c.output).where(of_run(outputs, cluster, raw_id, run)))
        return None if data is None else unpacked(data)
