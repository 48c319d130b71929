"""Jobs that exclude a node (``sbatch --exclude``), entered into its machine's history: one of the signals of lemons."""

from __future__ import annotations

from nccl_slurm.clock import Clock
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import SchedulerClient

__all__ = ["ASKED", "EVERY_S", "MOST", "Exclusions"]

#: A call of squeue; jobs that wait and run for less than this may be missed.
EVERY_S = 300.0
#: Who excludes more nodes than this wants a part of the cluster, and says nothing of each.
MOST = 64
#: In the store: since when exclude lists are asked for.
ASKED = "excluded-since"


class Exclusions:
    def __init__(self, client: SchedulerClient, store: Store, clock: Clock) -> None:
        self._client, self._store, self._clock = client, store, clock
        self._told: set[tuple[int, str]] = set()

    def turn(self) -> None:
        """What is new since the last turn. A daemon that starts tells of jobs again, so events count by their job."""
        lists = self._client.excluded()
        now = self._clock.now()
        there = {(job, node) for job, nodes in lists.items() if len(nodes) <= MOST for node in nodes}
        for job, node in sorted(there - self._told):
            self._store.add_events_of_node(node, now, [MachineEvent(now, "excluded", str(job), "poll")])
        self._told = there
        if self._store.value(ASKED) is None:
            self._store.set_value(ASKED, int(now))
