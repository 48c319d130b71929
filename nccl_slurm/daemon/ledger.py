"""Accounting's word on runs, written into the store: state, end, steps, and what is to be done with the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nccl_slurm.daemon.disposition import disposition
from nccl_slurm.daemon.runs import merged, run_number
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.model import alike
from nccl_slurm.scheduler.client import FINAL_STATES, Accounted, LiveJob, SchedulerClient

__all__ = ["OPEN", "Ledger"]

#: Statuses of a run that has not ended: as in the report.
OPEN = ("pending", "live")


class Ledger:
    """``cluster`` is the name that keys all runs; records of other clusters in one slurmdbd are left out."""

    def __init__(self, client: SchedulerClient, store: Store, cluster: str) -> None:
        self._client = client
        self._store = store
        self._cluster = cluster

    def reconcile(self, raw_ids: Iterable[int] = (), *, since: float | None = None) -> None:
        """Asks accounting for these jobs, or for all since then, and enters what it says."""
        ids = sorted(set(raw_ids))
        if not ids and since is None:
            return
        self.enter(self._client.accounting(ids, since=since))

    def enter(self, records: Iterable[Accounted]) -> None:
        ours = merged(r for r in records if r.cluster == self._cluster)
        known = self._store.runs_of_all(self._cluster, (record.raw_id for record in ours))
        changed: dict[tuple[int, int], RunRow] = {}
        for record in ours:
            runs = {run.run: changed.get((run.raw_id, run.run), run) for run in known[record.raw_id]}
            number = run_number(list(runs.values()), record.start or 0.0)
            before = runs.get(number)
            if before is None or before.status in OPEN:
                row = _entered(record, number, before)
                if row != before:
                    changed[record.raw_id, number] = row
                    known[record.raw_id] += [row] if before is None else []
        self._store.upsert_runs(list(changed.values()))

    def enter_live(self, jobs: Iterable[LiveJob]) -> None:
        """Without slurmdbd the end of a run is what slurmctld says of it until MinJobAge is over."""
        ended = (job for job in jobs if job.state in FINAL_STATES and job.start is not None and job.end is not None)
        self.enter([alike(Accounted, job, cluster=self._cluster) for job in ended])


def _entered(record: Accounted, number: int, before: RunRow | None) -> RunRow:
    row = _row(record, number, before)
    if record.final and record.state != "RESIZING" and not _is_stub(record):
        what, _ = disposition(row.as_job())
        if what != "open":
            return replace(row, status="final" if what == "ignore" else "settling", disposition=what)
    return row


def _is_stub(record: Accounted) -> bool:
    """slurmdbd (22.05) makes up a record when a job's end reaches it before the start: user root, name "allocation",
    no partition. Some seconds later it is whole."""
    return record.partition is None


def _row(record: Accounted, run: int, before: RunRow | None) -> RunRow:
    """Accounting's word, with what only slurmctld told kept from ``before``."""
    row = alike(RunRow, record, run=run)
    if before is None:
        return row
    nodes = tuple(dict.fromkeys([*before.nodes, *record.nodes]))
    row = replace(row.with_live(before), nodes=nodes, status=before.status)
    return replace(row, user=before.user, uid=before.uid, name=before.name) if _is_stub(record) else row
