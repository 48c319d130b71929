"""What recommendation wants to know beside a run's own evidence: its machines' past, and the cluster now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from nccl_slurm.config import Config
from nccl_slurm.daemon.machines import MachineWatch
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.daemon.site import Layout, site
from nccl_slurm.daemon.watch import JobWatch
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.rows import RecordRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.recommend.guard import allowed_open
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.site import Site
from nccl_slurm.recommend.step import HEAVY

__all__ = ["Surroundings"]

_DAY_S, _HOUR_S = 86_400.0, 3600.0


@dataclass(frozen=True)
class Surroundings:
    config: Config
    store: Store
    machines: MachineWatch
    jobs: JobWatch
    policy: Policy
    layout: Layout = field(default_factory=Layout)

    def past(self, run: RunRow) -> Mapping[str, Machine]:
        """By node name: of the run's nodes, of those that want something already, and of those that had trouble around
        its end: they may be of one event.

        Of the run's own faults and boots of all times, runs and states as far back as the ladder looks before it;
        of the others what is so near that it may be of one event.
        """
        asked = [row.node for row in self.store.active_recommendations()]
        others = list(dict.fromkeys(name for name in (*asked, *self._beside(run)) if name not in run.nodes))
        began = run.end if run.start is None else run.start
        lately = float("-inf") if began is None else began - self.policy.limit("repeat-window-d") * _DAY_S
        near = float("-inf") if began is None else began - 2 * self.policy.limit("fleet-window-h") * _HOUR_S
        found = chain(self.store.machines(run.nodes, lately=lately), self.store.machines(others, near))
        return {machine.node: machine for machine in found}

    def _beside(self, run: RunRow) -> list[str]:
        """Around the run's end: Slurm gives up a node, and a neighbour's record comes in, somewhat later."""
        if run.end is None:
            return []
        after = self.policy.limit("site-window-s")
        return self.machines.troubled(run.end - self.policy.limit("fleet-window-h") * _HOUR_S, run.end + after)

    def room(self) -> int:
        """How many nodes may have an open reboot or replace at a time."""
        return allowed_open(self.policy, len(self.machines.states or ()) or None)

    def site(self, run: RunRow, records: Sequence[RecordRow], controllers: Sequence[str]) -> Site:
        """``controllers``: hosts of slurmctld, primary first. What rests on this run itself does not count as open."""
        asked = (row for row in self.store.active_recommendations() if row.key != key_of(run))
        open_ = {row.node: row.action for row in asked if row.action in HEAVY}
        states, jobs = self.machines.states, self.jobs.live
        return site(self.config, controllers, states, jobs, records, open_, self.layout, self.store.reasons)
