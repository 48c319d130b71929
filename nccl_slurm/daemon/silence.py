"""Running jobs that show nothing any more: looked at now and then, told in their comment (``live.silent_s``; off).

Costs the job nothing: nothing runs on its nodes. Sizes and times of the files that it writes where this host can see
them (output, log folders of its batch script) are asked for as its user, in one child for up to eight of a user's runs;
they are read when nothing has changed for too long. What lies on the nodes alone is not seen, so counts of collectives
name nobody here. A restart forgets the rhythms, and waits until it has seen new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from nccl_slurm.attribute.live import Quiet
from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.conclude import AT_ONCE, TOGETHER, TURN_S, Conclusions, output_of
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.daemon.settle import in_groups
from nccl_slurm.daemon.watch import JobWatch
from nccl_slurm.history.rows import RunRow
from nccl_slurm.live.pace import Mark, Pace

__all__ = ["SilenceWatch"]

_Key = tuple[str, int, int]


@dataclass
class SilenceWatch:
    """``open_runs``: of the store, those that have not ended."""

    config: Config
    clock: Clock
    reader: OutputReader
    jobs: JobWatch
    conclusions: Conclusions
    open_runs: Callable[[], Sequence[RunRow]]
    _pace: Pace = field(default_factory=Pace)
    _looked: dict[_Key, float] = field(default_factory=dict)
    #: Runs that were told to be silent, and for how long they are by now.
    _told: dict[_Key, float] = field(default_factory=dict)

    def turn(self) -> None:
        """Looks at runs whose time has come, for some seconds: the longest not looked at first."""
        if not self.config.live.silent_s:
            return
        began, runs = self.clock.now(), self._running()
        self._forget({key_of(run) for run in runs})
        due = [run for run in runs if began - self._looked.get(key_of(run), 0.0) >= self.config.live.look_s]
        groups = in_groups(sorted(due, key=lambda run: self._looked.get(key_of(run), 0.0)), TOGETHER)
        while groups and self.clock.now() - began <= TURN_S:
            for run, files in self._ask(groups[:AT_ONCE]):
                self._looked[key_of(run)] = self.clock.now()
                if files:
                    self._see(run, files)
            del groups[:AT_ONCE]

    def _running(self) -> list[RunRow]:
        """By slurmctld's word at the newest poll: a suspended job is silent, and all is well with it."""
        running = {job.raw_id for job in self.jobs.live or () if job.state == "RUNNING"}
        open_ = [run for run in self.open_runs() if run.raw_id in running and run.uid is not None]
        scoped = [run for run in open_ if self.config.scope_of(run.partition) != "none"]
        return [run for run in scoped if output_of(run).paths]

    def _forget(self, running: set[_Key]) -> None:
        for key in self._looked.keys() - running:
            del self._looked[key]
            self._told.pop(key, None)
            self._pace.forget(key)

    def _ask(self, groups: Sequence[Sequence[RunRow]]) -> list[tuple[RunRow, list[Any] | None]]:
        """The waiting is done by threads."""

        def ask(runs: Sequence[RunRow]) -> list[tuple[RunRow, list[Any] | None]]:
            wanted = [output_of(run) for run in runs]
            return list(zip(runs, self.reader.files_each(wanted, runs[0].uid or 0), strict=True))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [pair for pairs in pool.map(ask, groups) for pair in pairs]

    def _see(self, run: RunRow, files: Sequence[Any]) -> None:
        key, now = key_of(run), self.clock.now()
        if not self._pace.knows(key) and self.conclusions.was_silent(run):
            self._told[key] = 0.0  # by a daemon before this one
        self._pace.see(now, {key: _mark(files, now)})
        quiet_s, keys = self._pace.quiet_s(key, now), self._pace.with_rhythm([key])
        if keys and quiet_s >= self._pace.too_long_s(keys, self.config.live.silent_s):
            self._silent(run, quiet_s, self._pace.longest_s(keys))
        elif key in self._told and self._pace.changed(key):
            self.conclusions.goes_on(run, self._told.pop(key))

    def _silent(self, run: RunRow, quiet_s: float, longest_s: float | None) -> None:
        key = key_of(run)
        if key in self._told or self.conclusions.silent(run, Quiet(all_s=quiet_s, longest_s=longest_s)):
            self._told[key] = quiet_s


def _mark(files: Sequence[Any], now: float) -> Mark:
    """Of all files together; a file server's clock may be ahead."""
    newest = max(float(one["mtime"]) for one in files)
    value: Hashable = tuple(sorted((one["path"], str(one.get("size")), float(one["mtime"])) for one in files))
    return Mark(value, max(0.0, now - newest))
