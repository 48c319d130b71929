"""What arrives at the controller: EpilogSlurmctld's hints and the nodes' records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.clock import Clock
from nccl_slurm.collect.shared import Inbox, Incoming
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.errors import InputError, RecordError, SlurmError
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store

__all__ = ["Hints", "RecordIntake", "run_of_record"]

_EVENT = re.compile(r"(?P<job>[0-9]{1,10})\.[0-9]{1,10}")
#: A record whose job Slurm does not know yet is looked at again; accounting learns of a job within seconds.
UNKNOWN_JOB_S = 600.0
A_TURN = 500
#: slurmdbd knows a job some seconds after its begin; each look at waiting records is one question to Slurm.
LOOK_SOON_S, SOON_S, LOOK_LATER_S = 3.0, 30.0, 30.0
#: A job may wait for days before it runs again.
LOOK_LIVE_S = 300.0
#: What can't be moved (root of a node made a folder of its name in quarantine) is tried ever more rarely.
STUCK_S = 3600.0
#: A writer is ended after a minute; clocks of file servers differ.
PART_S = 86400.0
#: Clocks of nodes and controller differ, and a prolog may run late (no PrologFlags=Alloc: when a step starts).
BEFORE_START_S = 60.0
AFTER_END_S = 600.0
#: From a run's start to its prolog, on most nodes.
PROLOG_S = 5.0


class Hints:
    """Names in ``EVENTS/new`` are hints that a job ended; their content is never opened (SlurmUser writes there)."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "new")

    def take(self) -> set[int]:
        """Raw job ids; the files are gone afterwards. What can't be removed is no hint: it would come at each tick.

        A lost hint is found again by reconciling open runs."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return set()
        try:
            return {int(match["job"]) for name in os.listdir(folder) if (match := self._taken(folder, name))}
        finally:
            os.close(folder)

    @staticmethod
    def _taken(folder: int, name: str) -> re.Match[str] | None:
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:
            return None
        return _EVENT.fullmatch(name)


def run_of_record(runs: Sequence[RunRow], when: float) -> RunRow | None:
    """The run that a record belongs to: the latest that had begun at ``when`` (its folder: prolog, else epilog)."""
    fitting = [
        run
        for run in runs
        if run.start is not None
        and run.start - BEFORE_START_S <= when
        and (run.end is None or when <= run.end + AFTER_END_S)
    ]
    begun = [run for run in fitting if run.start is not None and run.start <= when + 2.0]
    return max(begun or fitting, key=lambda run: run.start or 0.0, default=None)


def _is_unsure(incoming: Incoming, run: RunRow) -> bool:
    """Whether its prolog ran after this run's end, or long after its start: then it is of a later run, which Slurm may
    have yet to tell of, or that node's clock is off."""
    after = run.end if run.end is not None else (run.start or 0.0) + PROLOG_S
    return incoming.record.get("prolog") is not None and incoming.folder_time > after


class _Wait(NamedTuple):
    """``since``: from when on Slurm has told that it knows no such run; None where it did not answer. ``stuck_s``: the
    last pause of a name that could not be moved, 0 for others."""

    since: float | None
    look_at: float
    stuck_s: float = 0.0


class RecordIntake:
    """Moves records from the shared folder into the store; what can't be believed goes to quarantine and is noted."""

    def __init__(
        self,
        inbox: Inbox,
        store: Store,
        clock: Clock,
        cluster: str,
        learn: Callable[[set[int]], None],
        documents_gone: Callable[[RunRow], bool],
        lives: Callable[[int], bool],
        taken: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        self._inbox = inbox
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._learn = learn  # asks Slurm about raw job ids; SlurmError where it does not answer
        self._documents_gone = documents_gone
        self._lives = lives  # whether a raw job id waits or runs
        self._taken = taken  # before a record is stored: after a kill between the two it comes again
        self._waiting: dict[str, _Wait] = {}
        self._first_seen: dict[str, float] = {}

    def poll(self) -> int:
        """Returns how many new records were stored; a flood is taken in turns, what waits already comes last."""
        names = self._inbox.pending()
        self._waiting = {name: self._waiting[name] for name in names if name in self._waiting}
        self._first_seen = {name: self._first_seen.get(name, self._clock.now()) for name in names}
        due = [name for name in names if self._look_at(name) <= self._clock.now()]
        stored, strange = 0, []
        for incoming in filter(None, map(self._read, sorted(due, key=self._look_at)[:A_TURN])):
            run = self._match(incoming)
            if run is None or _is_unsure(incoming, run):
                strange.append(incoming)
            else:
                stored += self._take(incoming, run)
        return stored + self._take_strange(strange)

    def remove_parts(self) -> None:
        """What nodes' writers that were killed left half-written: the nodes hold those records, and send them again."""
        try:
            self._inbox.remove_parts(self._clock.now() - PART_S)
        except OSError as error:
            raise InputError(f"tmp in the shared folder: {error.strerror}; what is old there stays") from None

    def look_again(self) -> None:
        """At all that waits."""
        self._waiting.clear()

    def _look_at(self, name: str) -> float:
        return self._waiting[name].look_at if name in self._waiting else 0.0

    def _read(self, name: str) -> Incoming | None:
        try:
            return self._inbox.read(name)
        except (RecordError, InputError) as error:
            self._refuse(name, str(error))
            return None

    def _take(self, incoming: Incoming, run: RunRow) -> bool:
        node = incoming.record["node"]
        if node not in run.nodes:
            self._refuse(incoming.name, f"node {node} is not in the list of run {run.run} of job {run.id}")
            return False
        if self._documents_gone(run):
            self._refuse(incoming.name, f"job {run.id} run {run.run} ended before store.records_days: too late")
            return False
        kept = self._store.report(*key_of(run))
        late = kept is not None and kept.report["status"] == "final"
        now = self._clock.now()
        quiet = any(gap["why"] == CAPTURE_OFF for gap in incoming.record["gaps"])
        self._taken(incoming.record)
        new = self._store.add_record(*key_of(run), incoming.record, received=now, late=late, quiet=quiet)
        self._remove(incoming.name)
        return new

    def _remove(self, name: str) -> None:
        """What is stored and stays (a folder that is read-only) must not hold up what is behind it."""
        try:
            self._inbox.done(name)
        except OSError as error:
            if self._stays(name):
                self._store.note("records", f"{name} is stored and stays in new: {error.strerror}", self._clock.now())

    def _stays(self, name: str) -> bool:
        """Whether that is new, and worth a note."""
        known = self._stuck_s(name)
        pause = min(2 * known, STUCK_S) if known else LOOK_LATER_S
        self._waiting[name] = _Wait(None, self._clock.now() + pause, pause)
        return not known

    def _stuck_s(self, name: str) -> float:
        return self._waiting[name].stuck_s if name in self._waiting else 0.0

    def _take_strange(self, strange: Sequence[Incoming]) -> int:
        """Records of jobs, or of their later runs, that the store does not know: Slurm is asked about all at once."""
        if not strange:
            return 0
        answered, stored = self._ask({one.record["job_id"] for one in strange}), 0
        for incoming in strange:
            run = self._match(incoming)
            if run is None or (not answered and _is_unsure(incoming, run)):
                self._wait(incoming, answered)
            else:
                stored += self._take(incoming, run)
        return stored

    def _ask(self, raw_ids: set[int]) -> bool:
        try:
            self._learn(raw_ids)
        except SlurmError as error:
            self._store.note("records", f"{error}; records of unknown jobs wait", self._clock.now())
            return False
        return True

    def _match(self, incoming: Incoming) -> RunRow | None:
        """By time; a node whose clock is off is still told where the job had it in one run only."""
        runs = self._store.runs_of_raw(self._cluster, incoming.record["job_id"])
        found = run_of_record(runs, incoming.folder_time)
        if found is not None or self._is_in_step(incoming):
            return found
        of_node = [run for run in runs if incoming.record["node"] in run.nodes]
        return of_node[0] if len(of_node) == 1 else None

    def _is_in_step(self, incoming: Incoming) -> bool:
        """It was first seen soon after it was written, by a clock that tells the same time as ours: its prolog is as
        old as it says."""
        return abs(self._first_seen[incoming.name] - float(incoming.record["written"])) < BEFORE_START_S

    def _wait(self, incoming: Incoming, answered: bool) -> None:
        """Refused only after Slurm has said for ten minutes, without a pause, that it knows no such run, and no job
        that waits or runs: one that was taken off its nodes before it began is told of when the job ends, if ever."""
        now, before = self._clock.now(), self._waiting.get(incoming.name)
        since = None if not answered else before.since if before and before.since is not None else now
        if since is not None and now - since > UNKNOWN_JOB_S:
            if self._lives(incoming.record["job_id"]):
                self._waiting[incoming.name] = _Wait(now, now + LOOK_LIVE_S, self._stuck_s(incoming.name))
                return
            job = incoming.record["job_id"]
            why = (
                f"Slurm knows no run of job {job} at that time: never begun, taken off its nodes before, or not its own"
            )
            self._refuse(incoming.name, why)
            return
        pause = LOOK_SOON_S if since is not None and now - since < SOON_S else LOOK_LATER_S
        self._waiting[incoming.name] = _Wait(since, now + pause, self._stuck_s(incoming.name))

    def _refuse(self, name: str, why: str) -> None:
        try:
            self._inbox.quarantine(name)
        except (InputError, OSError) as error:  # one name must not hold up those behind it
            if not self._stays(name):
                return
            why = f"{why}; and it stays, since {error}"
        self._store.note("quarantine", f"{name}: {why}", self._clock.now())
