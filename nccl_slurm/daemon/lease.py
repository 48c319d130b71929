"""This process's claim to the store that several controllers share, and how it is kept and given up.

The database tells whose the lease is (`history.lease`). Here only durations are measured, by a clock that runs on while
the machine sleeps and that nobody sets: for how long after the last renewal nobody else can have taken over.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from nccl_slurm.errors import LeaseLost, StoreError
from nccl_slurm.history.rows import Claim, Holder
from nccl_slurm.history.store import Store

__all__ = ["Lease", "claim_of"]

_log = logging.getLogger(__name__)
#: Renewals in one term.
RENEWALS = 4


def claim_of(state: str) -> Claim:
    """Of this process, which holds the lock of the folder ``state``."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = secrets.token_hex(16)
    host = socket.gethostname()
    place = hashlib.sha256("\0".join((boot, host, os.path.abspath(state))).encode("utf-8", "surrogateescape"))
    return Claim(secrets.token_hex(16), host, os.getpid(), place.hexdigest())


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """``term_s``: it runs out so long after the last renewal."""

    def __init__(self, store: Store, claim: Claim, term_s: float, elapsed: Callable[[], float] = _elapsed) -> None:
        self.claim, self.term_s, self.every_s = claim, term_s, term_s / RENEWALS
        self._store = store
        self._elapsed = elapsed
        self._sure_until = float("-inf")
        self._lost: LeaseLost | None = None

    def take(self) -> Holder | None:
        """None: it is ours. Else who has it."""
        asked = self._elapsed()
        holder = self._store.take_lease(self.claim, self.term_s)
        if holder is None:
            self._lost = None
            self._hold_since(asked)
        return holder

    def hold(self) -> None:
        """Costs nothing but where the last renewal is old: then it is renewed. Not enough before what others see: the
        clocks of a virtual machine may stand still with it. Raises as `renew` does."""
        if self._lost is not None:
            raise self._lost
        if self._elapsed() >= self._sure_until:
            self.renew()

    def renew(self) -> None:
        """Asks the store. Raises LeaseLost, or StoreError where the store does not answer."""
        if self._lost is not None:
            raise self._lost
        asked = self._elapsed()
        try:
            self._store.renew_lease(self.claim, self.term_s)
        except LeaseLost as lost:
            self._lost = lost
            raise
        self._hold_since(asked)

    def _hold_since(self, asked: float) -> None:
        """A quarter less: two machines' quartz clocks don't run quite alike."""
        self._sure_until = asked + self.term_s - self.every_s

    def release(self) -> None:
        """At a clean stop. Where the store does not answer it runs out by itself."""
        self._lost = self._lost or LeaseLost(f"{self._store.where}: the lease was given back")
        try:
            self._store.release_lease(self.claim)
        except StoreError as error:
            _log.warning("the lease was not given back: %s", error)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renewed by a thread, since a duty may take minutes, and given back at the end, whatever that is."""
        done = Event()
        keeper = Thread(target=self._keep, args=(done,), name="lease", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join(self.term_s)
            self.release()

    def _keep(self, done: Event) -> None:
        while not done.wait(self.every_s):
            try:
                self.renew()
            except LeaseLost:
                return
            except StoreError as error:
                _log.info("the lease was not renewed: %s", error)
