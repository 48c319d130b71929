"""Fetches the records that no shared folder has brought, from the nodes themselves, beside the daemon's loop.

Each node is visited by one thread of a pool at a time, for all its missing records, and again after a pause that grows
while nothing comes: a node that hangs costs its own visit and nobody else's. What comes lands in a folder that the
intake reads as it reads the shared one. Only the loop's own thread touches the store.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from nccl_slurm.clock import Clock
from nccl_slurm.collect.fetch import Fetcher, Offer, Visit
from nccl_slurm.collect.ssh import Target
from nccl_slurm.config import Ssh
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.daemon.settle import missing_nodes
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.hosts import HOST
from nccl_slurm.scheduler.client import NodeState

__all__ = ["Fetching"]

_log = logging.getLogger(__name__)
#: Final runs whose records are missing are looked up so often, at one query; sooner where a run has become final.
LATE_EVERY_S, LATE_SOON_S = 600.0, 30.0
PAUSE_S, PAUSE_MAX_S = 5.0, 600.0


@dataclass
class _Node:
    """``asked``: jobs of the last visit. ``failures``: visits in a row that brought nothing."""

    due: float = 0.0
    failures: int = 0
    reached: bool = True
    asked: frozenset[int] = frozenset()
    had: set[Offer] = field(default_factory=set)
    visit: Future[Visit] | None = None


class Fetching:
    def __init__(self, ssh: Ssh, store: Store, clock: Clock, fetcher: Fetcher) -> None:
        self._ssh, self._store, self._clock, self._fetcher = ssh, store, clock, fetcher
        self._pool = ThreadPoolExecutor(ssh.at_once, thread_name_prefix="fetch")
        self._nodes: dict[str, _Node] = {}
        self._late: tuple[tuple[int, str], ...] = ()
        self._settling: frozenset[tuple[str, int, int]] = frozenset()
        self._late_due = 0.0

    def tick(self, settling: Sequence[RunRow], states: Sequence[NodeState]) -> None:
        """Takes what visits told, begins visits that are due. Raises ConfigError and InputError where none could be."""
        self._fetcher.prepare()
        by_name = {state.name: state for state in states}
        self._hear(by_name)
        wanted = self._wanted(settling)
        for name in [name for name, node in self._nodes.items() if name not in wanted and node.visit is None]:
            del self._nodes[name]
        due = [name for name in wanted if self._is_due(name, wanted[name])]
        free = self._ssh.at_once - sum(node.visit is not None for node in self._nodes.values())
        for name in due[: max(free, 0)]:
            state = by_name.get(name)
            self._begin(Target(name, (state.address if state else None) or name), wanted[name])

    def look_again(self) -> None:
        """The clock was set back: pauses are over."""
        self._late_due = 0.0
        for node in self._nodes.values():
            node.due = 0.0

    def close(self) -> None:
        self._fetcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wanted(self, settling: Sequence[RunRow]) -> dict[str, frozenset[int]]:
        """Raw job ids by node, those that wait for their verdict first."""
        now, arrived = self._clock.now(), self._store.record_nodes_of_settling()
        before, self._settling = self._settling, frozenset(map(key_of, settling))
        if not before <= self._settling:
            self._late_due = min(self._late_due, now + LATE_SOON_S)
        if now >= self._late_due:
            self._late = self._store.missing_records(now - self._ssh.late_h * 3600.0)
            self._late_due = now + LATE_EVERY_S
        pairs = [
            (run.raw_id, node)
            for run in settling
            if run.end is not None and run.end + self._ssh.wait_s <= now <= run.end + self._ssh.late_h * 3600.0
            for node in missing_nodes(run.nodes, arrived.get(key_of(run), ()))
        ]
        found: dict[str, set[int]] = {}
        for raw_id, name in [*pairs, *self._late]:
            if HOST.match(name):
                found.setdefault(name, set()).add(raw_id)
        return {name: frozenset(jobs) for name, jobs in found.items()}

    def _is_due(self, name: str, jobs: frozenset[int]) -> bool:
        node = self._nodes.setdefault(name, _Node())
        if node.visit is not None:
            return False
        return node.due <= self._clock.now() or (node.reached and not jobs <= node.asked)

    def _begin(self, target: Target, jobs: frozenset[int]) -> None:
        node = self._nodes[target.node]
        node.asked = jobs
        node.visit = self._pool.submit(self._fetcher.visit, target, jobs, frozenset(node.had))

    def _hear(self, states: Mapping[str, NodeState]) -> None:
        for name, node in self._nodes.items():
            if node.visit is None or not node.visit.done():
                continue
            told = node.visit.result()
            node.visit, node.reached = None, told.why is None
            node.had.update(told.fetched)
            node.failures = 0 if told.fetched else node.failures + 1
            node.due = self._clock.now() + min(PAUSE_S * 2.0 ** min(node.failures, 20), PAUSE_MAX_S)
            if told.fetched:  # the intake has yet to take it in
                self._late_due = min(self._late_due, self._clock.now() + PAUSE_S)
                _log.info("%s: %d records fetched", name, len(told.fetched))
            if told.why is not None and node.failures == 1 and not _is_down(states.get(name)):
                _log.warning("%s", told.why)
                self._store.note("fetch", told.why, self._clock.now())


def _is_down(state: NodeState | None) -> bool:
    """Nobody expects an answer, and Slurm tells of it already."""
    return state is not None and state.failed
