"""Who holds the lease on a store, read within a transaction of the caller's; the database's own clock."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, select, text

from nccl_slurm.errors import LeaseLost, StoreBusy
from nccl_slurm.history.rows import Claim, Holder
from nccl_slurm.history.schema import lease, version_of

__all__ = ["check_token", "holder_of", "is_free", "now_of", "refuse_under_a_lease"]


def now_of(connection: Connection) -> float:
    """Seconds since 1970, by MariaDB. Not by NOW(): in a time zone with summer time an hour comes twice."""
    sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000"
    return float(connection.scalar(text(sql)) or 0.0)


def holder_of(connection: Connection) -> Holder | None:
    """None where nobody ever had it."""
    found = connection.execute(select(lease)).first()
    if found is None:
        return None
    left = found.until - now_of(connection)
    return Holder(found.token, found.host, found.pid, found.place, found.since, left)


def is_free(found: Holder | None, claim: Claim) -> bool:
    """Never taken, given back, run out, ours already, or of a daemon that ran in this one's place: who holds the lock
    of a state folder knows that the one which had it before is dead."""
    if found is None or not found.token or found.left_s <= 0:
        return True
    return found.token == claim.token or found.place == claim.place


def check_token(where: str, token: str, connection: Connection, *, alone: bool = False) -> None:
    """Raises LeaseLost where another token is in the row, which stays locked until the transaction ends. ``alone``: it
    will be changed by this transaction; else transactions share it."""
    query = select(lease.c.token, lease.c.host, lease.c.pid).with_for_update(read=not alone)
    found = connection.execute(query).first()
    if found is None or found.token != token:
        by = f"the daemon on {found.host} (pid {found.pid})" if found is not None and found.token else "another daemon"
        raise LeaseLost(f"{where}: {by} has taken over")


def refuse_under_a_lease(connection: Connection, where: str, version: int) -> None:
    """StoreBusy where tables would change under the hands of a daemon that works by the older ones."""
    if version_of(connection) >= version or not inspect(connection).has_table(lease.name):
        return
    found = holder_of(connection)
    if found is not None and found.token and found.left_s > 0:
        raise StoreBusy(
            f"{where}: the daemon on {found.host} (pid {found.pid}) is of an older nccl-slurm; stop it, then this one "
            "brings the store up to date"
        )
