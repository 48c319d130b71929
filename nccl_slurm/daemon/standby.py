"""A daemon that waits: it looks at the lease, and passes on what only its host is told of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from nccl_slurm.clock import Clock
from nccl_slurm.daemon.intake import Hints
from nccl_slurm.daemon.lease import Lease
from nccl_slurm.daemon.notify import Notifier
from nccl_slurm.errors import SlurmError, StoreError
from nccl_slurm.history.rows import Holder
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import SchedulerClient

__all__ = ["StandBy"]

_log = logging.getLogger(__name__)


@dataclass
class StandBy:
    """``tick_s``: how often the events folder is looked at; the lease is, as often as its holder renews it."""

    lease: Lease
    store: Store
    client: SchedulerClient
    hints: Hints
    clock: Clock
    notifier: Notifier
    tick_s: float
    _said: str = ""

    def wait(self, stopping: Callable[[], bool]) -> bool:
        """True when the lease is ours, False when we are to stop."""
        elapsed = self.lease.every_s
        while not stopping():
            if elapsed >= self.lease.every_s:
                elapsed = 0.0
                if self._look():
                    return True
            self._pass_on()
            self.clock.sleep(self.tick_s)
            elapsed += self.tick_s
        self._leave()
        return False

    def _look(self) -> bool:
        """Whether it is ours now. Only a daemon that Slurm answers can do anything with it."""
        try:
            reached = self._slurm_answers()
            holder = self.lease.take() if reached else self.store.holder()
            if reached and holder is None:
                _log.info("this daemon has the lease now: it works")
                return True
            self.store.stand_by(self.lease.claim, reaches_slurm=reached)
            self._say(_told(holder, reached))
        except StoreError as error:
            self._say(f"stand-by; {error}")
        return False

    def _slurm_answers(self) -> bool:
        """Whichever controller that is: one that is not in charge answers `scontrol ping`, and nothing else."""
        try:
            self.client.settings()
        except SlurmError as error:
            _log.info("%s", error)
            return False
        return True

    def _say(self, words: str) -> None:
        """To systemd each time, as a sign of life; to the log when it changes."""
        if words != self._said:
            _log.info("%s", words)
            self.notifier.ready()
        self._said = words
        self.notifier.alive(words)

    def _pass_on(self) -> None:
        """A hint that is lost costs half a minute."""
        hinted = self.hints.take()
        if not hinted:
            return
        try:
            self.store.pass_on_hints(hinted)
        except StoreError as error:
            _log.info("events of %d jobs were not passed on: %s", len(hinted), error)

    def _leave(self) -> None:
        try:
            self.store.stand_by_no_more(self.lease.claim)
        except StoreError as error:
            _log.info("%s", error)


def _told(holder: Holder | None, reached: bool) -> str:
    works = f"the daemon on {holder.host} (pid {holder.pid}) works" if holder else "nobody works"
    return f"stand-by; {works}" if reached else f"stand-by; {works}; Slurm does not answer here"
