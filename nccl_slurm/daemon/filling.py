"""Times in which nobody polled, filled from slurmdbd: before the first start, and while the daemon or Slurm was away.

How far the states of nodes are known without a gap is kept in the store (`FILLED`). Polls move it on; after a gap
slurmdbd is asked, however long that takes to answer, and polls go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.backfill import missed_edges
from nccl_slurm.daemon.machines import MachineWatch
from nccl_slurm.errors import SlurmError
from nccl_slurm.history.rows import NodeEventRow
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import NodeEvent, NodeState, SchedulerClient

__all__ = ["FILLED", "Filling"]

FILLED = "events-filled"
_DAY_S = 86400.0
#: One question: a fleet of 10,000 nodes has some 50,000 events in it.
_WINDOW_S = 30 * _DAY_S
#: A start asks for years, window by window; the other duties wait no longer than this in one poll.
_TURN_S = 5.0
_AGAIN_S = 60.0
#: slurmctld keeps its events while slurmdbd is away, and tells them when it is back: a time is asked for once more.
_ONCE_MORE_S = 120.0
#: Polls that come no later than this many periods have missed nothing that lasts.
_LATE = 2.5


class Filling:
    def __init__(
        self, client: SchedulerClient, store: Store, clock: Clock, machines: MachineWatch, config: Config
    ) -> None:
        self._client, self._store, self._clock, self._machines = client, store, clock, machines
        self._accounting = True
        self._every_s = config.daemon.nodes_poll_s
        self._first_s = (config.history.retain_days or 3650) * _DAY_S
        self._last: float | None = None  # when this daemon polled last
        self._since: float | None = None  # the beginning of a time that is not filled yet
        self._once_more: tuple[float, float] | None = None  # the beginning of one that is, and when to ask again
        self._kept = self._again = 0.0

    def without_accounting(self) -> None:
        """There is no slurmdbd: what polls miss is not observed."""
        self._accounting = False

    def fill(self, nodes: Sequence[NodeState], now: float) -> list[NodeEventRow]:
        """Edges that are stored now, of the time up to this poll. Never raises SlurmError: that is a note."""
        new = self._since is None and not self._in_time(now)
        if new:
            self._since = self._stored(now) if self._last is None else float(int(self._last))  # rows have whole seconds
        elif self._since is None and self._once_more and now >= self._once_more[1]:
            self._since, self._once_more = self._once_more[0], None
        self._last = now
        if self._since is None or not self._accounting:
            self._keep_now_and_then(now)
            return []
        if self._again - _AGAIN_S <= now < self._again:
            return []
        if new or self._once_more:
            self._once_more = max(self._since, now - _WINDOW_S), now + _ONCE_MORE_S
        return self._ask(nodes, self._since, now)

    def _in_time(self, now: float) -> bool:
        return self._last is not None and 0 <= now - self._last <= _LATE * self._every_s

    def _stored(self, now: float) -> float:
        """Before the first poll: how far an earlier daemon got. That of a clock which was ahead counts for nothing."""
        filled = self._store.value(FILLED)
        return now - self._first_s if filled is None else min(float(filled), now)

    def _keep_now_and_then(self, now: float) -> None:
        """A write a poll would be the only one of a quiet cluster."""
        if not self._kept <= now < self._kept + max(self._every_s, _AGAIN_S):
            self._keep(now)

    def _keep(self, at: float) -> None:
        self._store.set_value(FILLED, int(at))
        self._kept = at

    def _ask(self, nodes: Sequence[NodeState], since: float, now: float) -> list[NodeEventRow]:
        began, edges = self._clock.now(), []
        try:
            while since < now and self._clock.now() - began <= _TURN_S:
                until = min(since + _WINDOW_S, now)
                edges += self._window(nodes, since, until)
                self._keep(until)
                self._since = since = until
            if since >= now:
                self._since = None
                self._keep(now)
        except SlurmError as error:
            self._again = now + _AGAIN_S
            self._store.note("history", f"{error}; events of nodes since the last poll are not known yet", now)
        return edges

    def _window(self, nodes: Sequence[NodeState], since: float, until: float) -> list[NodeEventRow]:
        rows = self._client.node_events(since, until)
        states = {node.name: node for node in nodes}
        rows = [row for row in rows if row.node in states and _touches(row, since, until)]
        names = sorted({row.node for row in rows})  # nodes that Slurm has no more are left out
        later = self._store.node_events(names, since=since, until=until + _WINDOW_S)
        known = [*self._store.last_node_events(names, until=since), *later]
        edges = missed_edges(rows, dict.fromkeys(known), states, since, until)
        self._store.add_node_events(edges)
        self._machines.filled(rows, edges, {name: state.boot_time for name, state in states.items()})
        return edges


def _touches(row: NodeEvent, since: float, until: float) -> bool:
    """Whether it began or ended then."""
    return any(at is not None and since < at <= until for at in (row.start, row.end))
