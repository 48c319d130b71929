"""The lease on a store that several hosts can reach: of the daemons that run, the one that has it works.

One row, in the database that it protects. Times are the database's own: hosts need not agree on theirs. A daemon that
has the lease has a token; each of its writes looks, inside the same transaction, whether the row still holds it, and
keeps the row locked until the commit. So one that was frozen, and wakes when another has taken over, writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from functools import partial

from sqlalchemy import Connection, delete, insert, select, update

from nccl_slurm.history.database import Database, fitting
from nccl_slurm.history.holding import check_token, holder_of, is_free, now_of
from nccl_slurm.history.rows import Claim, Holder, StandBySeen
from nccl_slurm.history.schema import hints, lease, standbys

__all__ = ["Leases"]

_NAME = "daemon"
#: A stand-by that was not seen for so long is told no more.
_FORGOTTEN_S = 86400.0


class Leases(Database):
    def take_lease(self, claim: Claim, term_s: float) -> Holder | None:
        """None: it is ours, and this store writes under it from now on. Else who has it."""
        with self._reading() as connection:
            seen = holder_of(connection)
        if seen is not None and not is_free(seen, claim) and seen.left_s <= term_s:
            return seen
        with self._transaction(write=True) as connection:
            connection.execute(select(lease.c.token).with_for_update()).first()
            found, now = holder_of(connection), now_of(connection)
            if found is not None and not is_free(found, claim):
                if found.left_s > term_s:  # the database's clock was set back since
                    _set(connection, until=now + term_s)
                return found
            _set(connection, **asdict(claim), since=now, until=now + term_s)
            gone = (standbys.c.host == claim.host) | (standbys.c.seen < now - _FORGOTTEN_S)
            connection.execute(delete(standbys).where(gone))
        self._fence = partial(check_token, self.where, claim.token)
        return None

    def renew_lease(self, claim: Claim, term_s: float) -> None:
        """Raises LeaseLost where somebody else took it. One that has run out, and that nobody took, is ours yet."""
        with self._transaction(write=True) as connection:
            check_token(self.where, claim.token, connection, alone=True)
            _set(connection, until=now_of(connection) + term_s)

    def release_lease(self, claim: Claim) -> None:
        """The next one need not wait. Where it is not ours any more only our own writes change: they are free again."""
        self._fence = None
        with self._transaction(write=True) as connection:
            connection.execute(update(lease).where(lease.c.token == claim.token).values(token="", until=0.0))

    def holder(self) -> Holder | None:
        """None where nobody has it."""
        with self._reading() as connection:
            found = holder_of(connection)
        return found if found is not None and found.token else None

    # Stand-bys: what they write is not under the lease.

    def stand_by(self, claim: Claim, *, reaches_slurm: bool) -> None:
        """A sign of life."""
        with self._writing() as connection:
            values = {"pid": claim.pid, "reaches_slurm": reaches_slurm, "seen": now_of(connection)}
            this = standbys.c.host == claim.host
            if not connection.execute(update(standbys).where(this).values(values)).rowcount:
                connection.execute(insert(standbys).values(fitting(standbys, {"host": claim.host, **values})))

    def stand_by_no_more(self, claim: Claim) -> None:
        with self._writing() as connection:
            connection.execute(delete(standbys).where(standbys.c.host == claim.host))

    def standbys(self) -> tuple[StandBySeen, ...]:
        """By host."""
        with self._reading() as connection:
            found = connection.execute(select(standbys).order_by(standbys.c.host)).all()
            now = now_of(connection) if found else 0.0
        return tuple(StandBySeen(row.host, row.pid, max(now - row.seen, 0.0), bool(row.reaches_slurm)) for row in found)

    def pass_on_hints(self, raw_ids: Collection[int]) -> None:
        """Jobs that ended, for the daemon that works: EpilogSlurmctld ran on the host of a stand-by."""
        with self._writing() as connection:
            known = set(connection.scalars(select(hints.c.raw_id)))
            new = [{"raw_id": raw_id} for raw_id in sorted(set(raw_ids) - known)]
            if new:
                connection.execute(insert(hints), new)

    def take_hints(self) -> frozenset[int]:
        """They are gone afterwards."""
        with self._reading() as connection:
            found = frozenset(connection.scalars(select(hints.c.raw_id)))
        if found:
            with self._writing() as connection:
                connection.execute(delete(hints).where(hints.c.raw_id.in_(found)))
        return found


def _set(connection: Connection, **values: object) -> None:
    fit = fitting(lease, values)
    if not connection.execute(update(lease).values(fit)).rowcount:
        connection.execute(insert(lease).values(name=_NAME, **fit))
