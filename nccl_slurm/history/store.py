"""The store: all that the daemon remembers. Each public method that writes is one transaction; none takes SQL.

Text from jobs goes in as bound values and comes out as it was, but for what no database takes: lone surrogates (bytes
that were not UTF-8) come back as U+FFFD, and text beyond a column's length is cut.
"""

from __future__ import annotations

from nccl_slurm.history.comments import Comments
from nccl_slurm.history.events import Events
from nccl_slurm.history.lease import Leases
from nccl_slurm.history.machine_events import MachineEvents
from nccl_slurm.history.machines import Machines
from nccl_slurm.history.outputs import Outputs
from nccl_slurm.history.paths import Paths
from nccl_slurm.history.recommendations import Recommendations
from nccl_slurm.history.records import Records
from nccl_slurm.history.retention import Retention
from nccl_slurm.history.values import Values

__all__ = ["Store"]


class Store(
    Retention, Records, Outputs, Paths, Events, Machines, MachineEvents, Comments, Recommendations, Values, Leases
):
    """``with Store.open(url) as store``. Methods raise StoreError (StoreBusy, StoreTooNew, LeaseLost), nothing else."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
