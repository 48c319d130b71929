"""Our own jobs on idle nodes begin with one, then a few, then all the rest; none more once one cost a node.

A job runs the site's prolog and epilog. Where these are broken (a file in prolog.d that nobody can execute is enough)
Slurm drains each node on which a job begins or ends: a look at all idle nodes would take the cluster out of work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

from nccl_slurm.doctor.choose import closed
from nccl_slurm.doctor.reach import NoPlace, Way
from nccl_slurm.errors import SlurmError
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.hosts import fold
from nccl_slurm.scheduler.client import NodeState

__all__ = ["Gate", "Waves", "by_look"]

#: Nodes of the second wave.
_FEW = 8
#: So many are tried one by one until a job came through.
_TRIES = 4
#: After so long a job that is not over holds the next ones no more: a prolog of minutes, a node that hangs.
_PATIENCE_S = 30.0
#: slurmd may tell of a failed prolog after the job's end (22.05: at its registration).
_SETTLE_S = 3.0
_TICK_S = 0.5
#: For the epilogs of the last ones.
_END_S = 20.0
#: Reasons by which Slurm drains a node for how a job began or ended there.
_ENDINGS = ("prolog-error", "epilog-error", "kill-task-failed", "batch-job-complete-failure")


def by_look(node: NodeState, reasons: Reasons) -> str:
    """Of a node that was idle until our job began there: the reason's row, empty where it may have another cause."""
    row = reasons.classify(node.reason, node.reason_by).id
    return row if "DRAIN" in node.flags and row in _ENDINGS else ""


@dataclass
class _Job:
    """``over``: its epilog too."""

    began: float
    few: bool
    ended: float | None = None
    well: bool = False
    over: bool = False


@dataclass
class Waves:
    """Which node may get its job now. Pure: the clock and Slurm's words go in. ``stopped``: why no further job is
    begun, empty while they are. ``out``: nodes that Slurm gives no more work since our job began there, by its last
    word."""

    reasons: Reasons = field(default_factory=packaged)
    stopped: str = ""
    out: Mapping[str, NodeState] = field(default_factory=dict)
    _states: Mapping[str, NodeState] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _all: bool = False

    def admits(self, now: float) -> bool:
        """Whether one more may begin. May set ``stopped``."""
        if self.stopped or self._all:
            return not self.stopped
        if not any(job.well and job.over for job in self._jobs.values()):
            return self._admits_single(now)
        few = [job for job in self._jobs.values() if job.few]
        if len(few) < _FEW:
            return True
        self._all = not any(_holds(job, now) for job in few)
        return self._all

    def _admits_single(self, now: float) -> bool:
        jobs = self._jobs.values()
        if any(_holds(job, now) for job in jobs):
            return False
        if len(jobs) < _TRIES:
            return True
        if not any(_lasts(job, now) for job in jobs):
            self.stopped = f"of the look's own jobs on {fold(sorted(self._jobs))} none came through"
        return False

    def refuses(self, node: str) -> str:
        """Why none begins on this node any more; empty where one may, now or later. What somebody drained before our
        job came is not by us, and is left alone."""
        state = self._states.get(node)
        return self.stopped or (closed(state) if state is not None and _is_out(state) else "")

    def begins(self, node: str, now: float) -> None:
        self._jobs[node] = _Job(now, few=any(job.well and job.over for job in self._jobs.values()))

    def ends(self, node: str, now: float, *, well: bool) -> None:
        self._jobs[node].ended, self._jobs[node].well = now, well

    def saw(self, states: Mapping[str, NodeState], now: float) -> None:
        """``states``: as Slurm told them after all that was said to have ended had."""
        self._states = states
        self.out = {node: states[node] for node in self._jobs if node in states and _is_out(states[node])}
        for node, job in self._jobs.items():
            settled = job.ended is not None and (job.well or now - job.ended >= _SETTLE_S)
            job.over = job.over or (settled and node in states and not _is_completing(states[node]))
        if self.out and not self.stopped:
            first = min(self.out)
            alike = sorted(node for node, state in self.out.items() if state.reason == self.out[first].reason)
            self.stopped = f"on {fold(alike)} {self.ending(first)}"

    def ending(self, node: str) -> str:
        """What came of our job on this node, which is ``out``."""
        state = self.out[node]
        if by_look(state, self.reasons):
            return f"the look's own job ended in {state.reason!r}, and Slurm drained it"
        reason = state.reason or "no reason is given"
        return f"the look's own job was there when it became {state.full_state} ({reason})"

    def begun(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def lasting(self) -> list[str]:
        """Nodes of which it is not known yet how our job ended."""
        return sorted(node for node, job in self._jobs.items() if not job.over and node not in self.out)


def _holds(job: _Job, now: float) -> bool:
    return not job.over and now - job.began < _PATIENCE_S


def _lasts(job: _Job, now: float) -> bool:
    return not job.over and (job.ended is None or now - job.ended < _PATIENCE_S)


def _is_out(node: NodeState) -> bool:
    """Not responding alone is no word on our job: its slurmd may have hung before."""
    return "DRAIN" in node.flags or node.failed


def _is_completing(node: NodeState) -> bool:
    return "COMPLETING" in (node.state, *node.flags)


class Gate:
    """Where each node's thread waits for its turn. ``ask``: states of all nodes now; may raise SlurmError."""

    def __init__(self, ask: Callable[[], Mapping[str, NodeState]], waves: Waves) -> None:
        self.waves = waves
        self._ask, self._due = ask, 0.0
        self._changed = Condition()

    @contextmanager
    def place(self, node: str, way: Way) -> Iterator[None]:
        """Raises NoPlace where no further job is begun."""
        if way.name != "job":
            yield
            return
        self._enter(node)
        well = False
        try:
            yield
            well = True
        finally:
            with self._changed:
                self.waves.ends(node, time.monotonic(), well=well)
                self._changed.notify_all()

    def _enter(self, node: str) -> None:
        with self._changed:
            while True:
                self._look()
                admitted = self.waves.admits(now := time.monotonic())
                if why := self.waves.refuses(node):
                    raise NoPlace(why)
                if admitted:
                    self.waves.begins(node, now)
                    return
                self._changed.wait(_TICK_S)

    def _look(self) -> None:
        """A sixth of the time at most is spent on it. Without Slurm's word nobody knows what our jobs do."""
        start = time.monotonic()
        if not self.waves.begun() or self.waves.stopped or start < self._due:
            return
        self._saw(start)
        self._due = time.monotonic() + max(2 * _TICK_S, 5 * (time.monotonic() - start))

    def _saw(self, now: float) -> None:
        try:
            states = self._ask()
        except SlurmError as error:
            self.waves.stopped = self.waves.stopped or f"Slurm does not tell what the look's own jobs did: {error}"
        else:
            self.waves.saw(states, now)

    def close(self) -> None:
        """Once all have ended: waits for their epilogs, for a while."""
        end = time.monotonic() + _END_S
        while self.waves.begun():
            self._saw(now := time.monotonic())
            if not self.waves.lasting() or now > end:
                return
            time.sleep(_TICK_S)
