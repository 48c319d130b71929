"""Single numbers that the daemon remembers: its heartbeat, its last look back, slurmctld's start: seconds since 1970
UTC; ``pyslurm``: 1 while that is asked first."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from nccl_slurm.history.database import Database
from nccl_slurm.history.schema import meta

__all__ = ["Values"]


class Values(Database):
    def set_value(self, name: str, value: int) -> None:
        with self._writing() as connection:
            if not connection.execute(update(meta).where(meta.c.name == name).values(value=value)).rowcount:
                connection.execute(insert(meta).values(name=name, value=value))

    def value(self, name: str) -> int | None:
        """None where it was never set."""
        with self._reading() as connection:
            found = connection.scalar(select(meta.c.value).where(meta.c.name == name))
        return None if found is None else int(found)
