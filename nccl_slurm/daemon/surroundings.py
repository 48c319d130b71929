"""What recommendation wants to know beside a run's own evidence: its machines' past, and the cluster now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.config import Config
from nccl_slurm.daemon.machines import MachineWatch
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.daemon.site import site
from nccl_slurm.daemon.watch import JobWatch
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.rows import RecordRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.site import Site

__all__ = ["Surroundings"]

#: Actions that take a machine out of work: the fleet's cap counts them.
_HEAVY = ("reboot", "replace")
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Surroundings:
    config: Config
    store: Store
    machines: MachineWatch
    jobs: JobWatch
    policy: Policy

    def past(self, run: RunRow) -> Mapping[str, Machine]:
        """By node name: of the run's nodes, and of those that want something already, which may be of one event.

        Faults and boots of all times; runs and states as far back as the ladder looks at them before this run.
        """
        others = [row.node for row in self.store.active_recommendations()]
        names = list(dict.fromkeys([*run.nodes, *others]))
        began = run.end if run.start is None else run.start
        back_s = self.policy.limit("repeat-window-d") * _DAY_S
        lately = float("-inf") if began is None else began - back_s
        return {machine.node: machine for machine in self.store.machines(names, lately=lately)}

    def site(self, run: RunRow, records: Sequence[RecordRow], controllers: Sequence[str]) -> Site:
        """``controllers``: hosts of slurmctld, primary first. What rests on this run itself does not count as open."""
        asked = (row for row in self.store.active_recommendations() if row.key != key_of(run))
        open_ = {row.node: row.action for row in asked if row.action in _HEAVY and row.state != "queued"}
        return site(self.config, controllers, self.machines.states, self.jobs.live, records, open_)
