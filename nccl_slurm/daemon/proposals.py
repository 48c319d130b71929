"""Keeps the open recommendations in step with the verdicts; what each change was goes into the audit log."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.diagnose import Diagnosis
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.history.rows import RecommendationRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.review.outcome import outcome
from nccl_slurm.review.queue import Change, Source, by_daemon, due, renew

__all__ = ["Proposals"]

_DAY_S = 86400.0


@dataclass
class Proposals:
    config: Config
    store: Store
    clock: Clock

    def renew(self, run: RunRow, found: Diagnosis, *, speaks: bool) -> None:
        """What the verdict on this run asks of machines takes the place of what it asked before."""
        wanted = [one for one in found.recommendations if one.target is not None] if speaks else []
        source = _source(run, found)
        machines = [source.identities.get(one.target or "", one.target or "") for one in wanted]
        known = self.store.recommendations_of(machines, key_of(run))
        if wanted or known:
            expire_s = self.config.review.expire_days * _DAY_S
            now = self.clock.now()
            changes = renew(known, wanted, source, now=now, expire_s=expire_s, carried_out=self._carried_out)
            self._store(changes, known)

    def tick(self) -> None:
        """Snoozes that are over, recommendations too old to be believed."""
        active = self.store.active_recommendations()
        self._store(due(active, self.clock.now()), active)

    def _carried_out(self, row: RecommendationRow) -> bool:
        came = outcome(row, self.store.machine_of(row.identity))
        return came is not None and came.carried_out is not None

    def _store(self, changes: Sequence[Change], known: Sequence[RecommendationRow]) -> None:
        """A person may decide at the same moment: then nothing is stored, and the next look finds it so."""
        now, host = self.clock.now(), socket.gethostname()[:255]
        touched = {row.number for row, _ in changes}
        lines = [(row, by_daemon(row, what, now, host)) for row, what in changes]
        if lines:
            self.store.save_recommendations(lines, was=[row for row in known if row.number in touched])


def _source(run: RunRow, found: Diagnosis) -> Source:
    verdict = found.report["verdict"]
    return Source(
        cluster=run.cluster,
        raw_id=run.raw_id,
        run=run.run,
        job=run.id,
        failure_class=verdict["class"] if verdict else "unknown",
        identities={node.name: node.identity for node in found.evidence.nodes if node.identity},
    )
