"""Whether one moment was before another, where two nodes' clocks told them.

Times of one node compare as they are. Those of two nodes compare by what was measured of both clocks; where the gap is
no larger than what they may err, there is no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nccl_slurm.model import NodeView

__all__ = ["UNMEASURED_S", "ZONES_S", "Clocks", "Moment"]

#: What a clock may be off that nobody measured: the life of munge's credentials (munge(7): 300 s), with which a node
#: whose clock is further from slurmctld's can't take part at all.
UNMEASURED_S = 300.0
#: What two stamps of one moment may differ by where one has its zone and the other none: UTC-12 to UTC+14. A
#: container's zone need not be its node's.
ZONES_S = 26 * 3600.0


class Moment(NamedTuple):
    """``uncertainty_s``: the stamp's own resolution. ``host``: whose clock it is, None where that is not known.
    ``zoned``: whether the stamp has its zone; None where that is not known."""

    time: float
    uncertainty_s: float
    host: str | None
    zoned: bool | None = None


class Clocks:
    """``alone``: all times are of one node. ``nodes`` without a measured clock count with `UNMEASURED_S`."""

    def __init__(self, nodes: Sequence[NodeView], *, alone: bool) -> None:
        self._alone = alone
        self._error = {node.name: node.clock_error_s for node in nodes if node.clock_error_s is not None}
        self._offset = {node.name: node.clock_offset_s or 0.0 for node in nodes if node.name in self._error}
        # of a node that is not told: the worst of the run's, where all of them were measured
        self._unknown = max(self._error.values()) if len(self._error) == len(nodes) > 0 else UNMEASURED_S

    def earlier(self, one: Moment, two: Moment, margin_s: float) -> bool:
        """``one`` was before ``two`` by more than ``margin_s`` and all that both times may err."""
        gap = two.time - one.time
        if not self._same(one, two):
            gap = self.corrected(two) - self.corrected(one) - self.error(one.host) - self.error(two.host)
        if one.zoned is not None and two.zoned is not None and one.zoned != two.zoned:
            gap -= ZONES_S
        return gap > margin_s + one.uncertainty_s + two.uncertainty_s

    def corrected(self, moment: Moment) -> float:
        """By the clock that all nodes were measured against."""
        return moment.time - self._offset.get(moment.host or "", 0.0)

    def error(self, host: str | None) -> float:
        """Seconds by which a corrected time of this node may still be off."""
        return self._unknown if host is None else self._error.get(host, UNMEASURED_S)

    def _same(self, one: Moment, two: Moment) -> bool:
        return self._alone or (one.host is not None and one.host == two.host)
