"""Other runs on this node, by their folders in the spool: whose leftovers and whose kernel events could these be."""

from __future__ import annotations

from nccl_slurm.capture import spool
from nccl_slurm.capture.spool import Run

__all__ = ["Neighbours"]


class Neighbours:
    """Seen once, when made. Runs that partitions or conf keep out of the spool are not seen, nor are those of another
    boot: a run that a reboot cut off is closed when the next ones may have begun."""

    def __init__(self, folder: str, run: Run) -> None:
        prolog = run.prolog
        opened = prolog.time if prolog else float("-inf")  # without its prolog, when it began is not known
        others = [other for other in spool.runs(folder, over_by=opened) if other.path != run.path]
        boot_id = prolog.boot_id if prolog else None
        self._spans = [_span(other) for other in others if boot_id is None or _boot_of(other) in (None, boot_id)]

    def between(self, start: float, end: float) -> bool:
        """Whether another run was open at some moment of it."""
        return any(opened <= end and closed > start for opened, closed in self._spans)

    def next_after(self, moment: float) -> float | None:
        """When the next run began: from then on the node's kernel speaks of that one."""
        return min((opened for opened, _ in self._spans if opened > moment), default=None)


def _boot_of(run: Run) -> str | None:
    prolog = run.prolog
    return None if prolog is None else prolog.boot_id


def _span(run: Run) -> tuple[float, float]:
    prolog = run.prolog
    return (prolog.time if prolog else float(run.seconds)), spool.closed_at(run.path)
