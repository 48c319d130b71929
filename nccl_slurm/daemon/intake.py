"""What arrives at the controller: EpilogSlurmctld's hints and the nodes' records."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence

from nccl_slurm.clock import Clock
from nccl_slurm.collect.shared import Inbox, Incoming
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.errors import InputError, RecordError
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store

__all__ = ["Hints", "RecordIntake", "run_of_record"]

_EVENT = re.compile(r"(?P<job>[0-9]{1,10})\.[0-9]{1,10}")
#: A record whose job Slurm does not know yet is looked at again; accounting learns of a job within seconds.
UNKNOWN_JOB_S = 600.0
A_TURN = 500
#: Clocks of nodes and controller differ, and a prolog may run late (no PrologFlags=Alloc: when a step starts).
BEFORE_START_S = 60.0
AFTER_END_S = 600.0


class Hints:
    """Names in ``EVENTS/new`` are hints that a job ended; their content is never opened (SlurmUser writes there)."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "new")

    def take(self) -> set[int]:
        """Raw job ids; the files are gone afterwards. A lost hint is found again by reconciling open runs."""
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
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
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


class RecordIntake:
    """Moves records from the shared folder into the store; what can't be believed goes to quarantine and is noted."""

    def __init__(self, inbox: Inbox, store: Store, clock: Clock, cluster: str, learn: Callable[[int], None]) -> None:
        self._inbox = inbox
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._learn = learn  # asks Slurm about one raw job id
        self._waiting: dict[str, float] = {}

    def poll(self) -> int:
        """Returns how many new records were stored; a flood is taken in turns."""
        names = self._inbox.pending()
        self._waiting = {name: since for name, since in self._waiting.items() if name in names}
        new_first = sorted(names, key=lambda name: name in self._waiting)
        return sum(self._take(name) for name in new_first[:A_TURN])

    def _take(self, name: str) -> bool:
        try:
            incoming = self._inbox.read(name)
            run = self._run(incoming)
        except (RecordError, InputError) as error:
            self._refuse(name, str(error))
            return False
        return run is not None and self._store_one(name, incoming, run)

    def _store_one(self, name: str, incoming: Incoming, run: RunRow) -> bool:
        node = incoming.record["node"]
        if node not in run.nodes:
            self._refuse(name, f"node {node} is not in the list of run {run.run} of job {run.id}")
            return False
        kept = self._store.report(*key_of(run))
        late = kept is not None and kept.report["status"] == "final"
        now = self._clock.now()
        new = self._store.add_record(*key_of(run), incoming.record, received=now, late=late)
        self._inbox.done(name)
        return new

    def _run(self, incoming: Incoming) -> RunRow | None:
        """None: not known yet, look again. RecordError where Slurm knows no such job after ten minutes."""
        raw_id = incoming.record["job_id"]
        run = self._match(incoming)
        if run is None and self._first_look(incoming.name):
            self._learn(raw_id)
            run = self._match(incoming)
        if run is None and self._clock.now() - self._waiting[incoming.name] > UNKNOWN_JOB_S:
            raise RecordError(f"Slurm knows no run of job {raw_id} at that time")
        return run

    def _match(self, incoming: Incoming) -> RunRow | None:
        """By time; a node whose clock is off is still told where the job had it in one run only."""
        runs = self._store.runs_of_raw(self._cluster, incoming.record["job_id"])
        of_node = [run for run in runs if incoming.record["node"] in run.nodes]
        return run_of_record(runs, incoming.folder_time) or (of_node[0] if len(of_node) == 1 else None)

    def _first_look(self, name: str) -> bool:
        """Slurm is asked at the first look and then every 30 s."""
        now = self._clock.now()
        since = self._waiting.setdefault(name, now)
        return int(now - since) % 30 == 0

    def _refuse(self, name: str, why: str) -> None:
        try:
            self._inbox.quarantine(name)
        except (InputError, OSError) as error:  # one name must not hold up those behind it
            why = f"{why}; and it stays, since {error}"
        self._store.note("quarantine", f"{name}: {why}", self._clock.now())
