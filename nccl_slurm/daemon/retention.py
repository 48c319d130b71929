"""Forgetting what is older than store.retain_days and store.records_days, a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.outcomes import outcome_ids
from nccl_slurm.daemon.publish import published_name, unpublish
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.history.machine_events import Kept
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store

__all__ = ["Forgetting"]

DAY_S = 86400.0
#: Runs a transaction, and seconds a turn: a store of years must not keep the other duties waiting.
BATCH, TURN_S = 100, 5.0
#: The machine at which the last turn stopped: the next one goes on behind it.
CURSOR = "tidied"


@dataclass(frozen=True)
class Forgetting:
    config: Config
    store: Store
    clock: Clock

    def turn(self) -> None:
        """Raises InputError where published copies can't be removed: their runs then stay too."""
        now, kept = self.clock.now(), self.config.store
        if kept.records_days:
            self._batches(lambda: self.store.forget_documents(now - kept.records_days * DAY_S, BATCH))
        if kept.retain_days:
            before = now - kept.retain_days * DAY_S
            self.store.forget_notes(before)
            self.store.forget_recommendations(before)
            self._batches(lambda: self.forget(self.store.old_runs(before, BATCH)))
        self._tidy_machines(now)

    def _tidy_machines(self, now: float) -> None:
        """Counts old runs of machines and forgets what is too old: all of a small site, a part of a large one."""
        days = self.config.history
        gone = now - days.retain_days * DAY_S if days.retain_days else float("-inf")
        kept = Kept(now - days.runs_days * DAY_S, now - days.daily_days * DAY_S, gone)
        at = self.store.value(CURSOR) or 0
        while self.clock.now() - now < TURN_S:
            numbers = self.store.machine_numbers(at, BATCH)
            self.store.tidy_machines(numbers, kept)
            at = numbers[-1] if len(numbers) == BATCH else 0
            if at == 0:
                break
        self.store.set_value(CURSOR, at)

    def documents_gone(self, run: RunRow) -> bool:
        """Judging it again by a single late record would put a worse verdict in the place of a better one."""
        days = self.config.store.records_days
        return bool(days) and run.end is not None and run.end < self.clock.now() - days * DAY_S

    def comes_back(self, run: RunRow) -> bool:
        """Whether the daemon is still at it, or would find it in accounting when it starts."""
        found_since = self.clock.now() - self.config.daemon.look_back_h * 3600
        return run.status != "final" or run.end is None or run.end > found_since

    def _batches(self, batch: Callable[[], int]) -> None:
        began = self.clock.now()
        while batch() == BATCH and self.clock.now() - began < TURN_S:
            pass

    def forget(self, runs: Sequence[RunRow]) -> int:
        """All of these runs; returns how many. Copies first: after a kill the store still knows what is left to do.

        Raises InputError where published copies can't be removed.
        """
        if runs and self.config.paths.shared:
            names = [name for run in runs for name in self._copies(run, {key_of(one) for one in runs})]
            folder = os.path.join(self.config.paths.shared, "reports")
            unpublish(folder, names, owners=self.config.daemon.record_uids)
        self.store.forget_runs(map(key_of, runs))
        return len(runs)

    def forget_outcomes(self, runs: Sequence[RunRow]) -> None:
        """What the history of machines tells of these runs: for whoever erases them, since a machine's rate of failures
        changes by it."""
        for run in runs:
            self.store.forget_outcomes(outcome_ids(run))

    def _copies(self, run: RunRow, going: set[tuple[str, int, int]]) -> list[str]:
        """The copy of the newest run goes with the last run that has the id."""
        own = published_name(run.id, run.run)
        others = {key_of(other) for other in self.store.runs_of_raw(run.cluster, run.raw_id)} - going
        return [own] if others else [own, published_name(run.id)]
