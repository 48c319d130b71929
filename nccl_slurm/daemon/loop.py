"""The daemon: a list of duties, each with its period. A duty that fails is noted and tried again.

Everything that must survive a kill is in the store or still in the shared folder; what is only in memory (periods,
hints, when a node was last COMPLETING) is found again by asking Slurm.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from nccl_slurm.clock import Clock
from nccl_slurm.collect.fetch import Fetcher, landing_of
from nccl_slurm.collect.shared import Inbox
from nccl_slurm.config import Config
from nccl_slurm.daemon.comments import CommentWriter
from nccl_slurm.daemon.conclude import Conclusions
from nccl_slurm.daemon.exclusions import EVERY_S as EXCLUDED_EVERY_S
from nccl_slurm.daemon.exclusions import Exclusions
from nccl_slurm.daemon.fetching import Fetching
from nccl_slurm.daemon.filling import Filling
from nccl_slurm.daemon.intake import Hints, RecordIntake
from nccl_slurm.daemon.jump import Jumps
from nccl_slurm.daemon.lease import RENEWALS, Lease
from nccl_slurm.daemon.ledger import OPEN, Ledger
from nccl_slurm.daemon.machines import MachineWatch
from nccl_slurm.daemon.notify import Notifier
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.daemon.proposals import Proposals
from nccl_slurm.daemon.retention import Forgetting
from nccl_slurm.daemon.silence import SilenceWatch
from nccl_slurm.daemon.surroundings import Surroundings
from nccl_slurm.daemon.watch import JobWatch, NodeWatch
from nccl_slurm.errors import InputError, LeaseLost, NcclSlurmError, SlurmUnreachable
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.recommend.policy import Policy, default
from nccl_slurm.scheduler.client import NodeState, SchedulerClient, Settings

__all__ = ["Daemon", "Duty"]

_log = logging.getLogger(__name__)
#: Ended jobs are looked for in a window that reaches back this far before the last look.
OVERLAP_S = 3600.0
LOOK_BACK_EVERY_S = 600.0
CONTROLLERS_EVERY_S = 600.0
HEARTBEAT_EVERY_S = 30.0
PUBLISH_EVERY_S = 60.0
#: Each run has its own time to be looked at (live.look_s); without the option this is a look at a number.
SILENCE_EVERY_S = 1.0
PROPOSALS_EVERY_S = 60.0
FORGET_EVERY_S = 3600.0
FETCH_EVERY_S = 2.0
#: Nodes are asked more often while a run waits for their records.
SETTLING_POLL_S = 5.0
#: What waits in the store for its time is looked at so often: a query costs 2 ms, and half a second is a tick.
IDLE_S = 2.0
BACK_OFF_MAX_S = 60.0
HINT_KEPT_S = 60.0
#: By as much a clock goes back when it is kept in step.
STEP_S = 2.0


@dataclass
class Duty:
    """``due`` is when it runs next; ``failures`` in a row lengthen the pause.

    ``on_write``: due as well when the store was written to since it began last (``seen`` counts the writes).
    """

    name: str
    every_s: float
    work: Callable[[], object]
    on_write: bool = False
    due: float = 0.0
    failures: int = 0
    seen: int = -1


class Daemon:
    """``settings`` are those of the Slurm at start: its cluster name keys all runs. ``lease``: of a store that daemons
    on several hosts share; `tick` and `run` then raise LeaseLost, and this daemon is to be thrown away."""

    def __init__(
        self,
        config: Config,
        client: SchedulerClient,
        store: Store,
        clock: Clock,
        reader: OutputReader,
        settings: Settings,
        notifier: Notifier | None = None,
        policy: Policy | None = None,
        lease: Lease | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._lease = lease
        self._unanswered_since: float | None = None
        self._config, self._client, self._store, self._clock = config, client, store, clock
        self._notifier = notifier or Notifier("")
        self._accounting = settings.accounting
        self._cluster = settings.cluster
        self._hinted: dict[int, float] = {}
        self._backend = ""  # as the store has it
        self._machines = MachineWatch(store, clock)
        filling = Filling(client, store, clock, self._machines, config)
        if not settings.accounting:
            filling.without_accounting()
        self._nodes = NodeWatch(client, store, clock, filling.fill)
        self._jobs = JobWatch(client, store, clock, settings.cluster)
        self._ledger = Ledger(client, store, settings.cluster)
        self._proposals = Proposals(config, store, clock)
        self._around = Surroundings(config, store, self._machines, self._jobs, policy or default())
        self._around.layout.databases = settings.database_hosts
        self._around.layout.reboots = settings.reboots
        self._conclusions = Conclusions(config, store, clock, reader, self._proposals, self._around, ask=self._ask)
        self._silence = SilenceWatch(config, clock, reader, self._jobs, self._conclusions, self._open_runs)
        self._comments = CommentWriter(client, store, clock, config.daemon.verify_s, self._ask)
        self._hints = Hints(config.paths.events)
        self._forgetting = Forgetting(config, store, clock)
        self._jumps = Jumps(store)
        self._exclusions = Exclusions(client, store, clock)
        self._intake = self._make_intake()
        self._fetching: Fetching | None = None
        self._landed: RecordIntake | None = None
        if config.ssh.user:
            self._fetching = Fetching(config.ssh, store, clock, fetcher or Fetcher(config))
            self._landed = self._intake_of(landing_of(config), [os.geteuid()])
        self._duties = self._make_duties()
        if (store.value("born") or float("inf")) > clock.now():
            store.set_value("born", int(clock.now()))
        self._latest = float("inf")  # it may have been set back while no daemon ran
        self._conclusions.find_unpublished(clock.now() - config.daemon.look_back_h * 3600)

    def _make_intake(self) -> RecordIntake | None:
        shared = self._config.paths.shared
        if not shared:
            return None
        return self._intake_of(shared, self._config.daemon.record_uids)

    def _intake_of(self, folder: str, uids: Sequence[int]) -> RecordIntake:
        return RecordIntake(
            Inbox(folder, uids),
            self._store,
            self._clock,
            self._cluster,
            self._learn,
            self._forgetting.documents_gone,
            self._jobs.lives,
            self._machines.took,
        )

    def _make_duties(self) -> list[Duty]:
        every = self._config.daemon
        shared = [
            Duty("hints of stand-bys", IDLE_S, self._take_passed_on),
            Duty("lease", every.lease_s / RENEWALS, self._give_way),
            Duty("published reports", FORGET_EVERY_S, self._compare_published),
        ]
        return [
            *(shared if self._lease else ()),
            Duty("clock", 0.0, self._see_clock),
            Duty("controllers", CONTROLLERS_EVERY_S, self._ask_controllers),
            Duty("databases", CONTROLLERS_EVERY_S, self._ask_databases),
            Duty("switches", CONTROLLERS_EVERY_S, self._ask_switches),
            Duty("hints", 0.0, self._take_hints),
            Duty("nodes", every.nodes_poll_s, self._poll_nodes),
            Duty("jobs", every.jobs_poll_s, self._poll_jobs),
            Duty("look-back", LOOK_BACK_EVERY_S, self._look_back),
            Duty("open runs", every.reconcile_s, self._reconcile_open),
            Duty("hinted runs", 0.0, self._reconcile_hinted),
            Duty("records", 0.0, self._poll_records),
            Duty("exclude lists", EXCLUDED_EVERY_S, self._exclusions.turn),
            Duty("silent jobs", SILENCE_EVERY_S, self._silence.turn),
            *(self._fetching_duties() if self._fetching else []),
            Duty("verdicts", IDLE_S, self._settle, on_write=True),
            Duty("comments", IDLE_S, self._comments.tick, on_write=True),
            Duty("publish", PUBLISH_EVERY_S, self._conclusions.publish_again),
            Duty("recommendations", PROPOSALS_EVERY_S, self._renew_proposals),
            Duty("half-written records", FORGET_EVERY_S, self._remove_parts),
            Duty("retention", FORGET_EVERY_S, self._forget),
            Duty("heartbeat", HEARTBEAT_EVERY_S, self._heartbeat),
        ]

    def _fetching_duties(self) -> list[Duty]:
        return [Duty("fetch", FETCH_EVERY_S, self._fetch), Duty("fetched records", 0.0, self._poll_landed)]

    def run(self, stopping: Callable[[], bool]) -> None:
        """Until ``stopping()``."""
        self._notifier.ready()
        self._store.set_value("stopped", 0)
        self._store.set_value("started", int(self._clock.now()))
        while not stopping():
            self.tick()
            self._clock.sleep(self._config.daemon.tick_s)
        self._notifier.stopping()
        self._store.set_value("stopped", int(self._clock.now()))

    def close(self) -> None:
        """Ends visits of nodes that are under way; what they have brought so far stays."""
        if self._fetching is not None:
            self._fetching.close()

    def tick(self) -> None:
        """Each duty that is due, once."""
        now = self._clock.now()
        for duty in self._duties if now < self._latest - STEP_S else ():
            duty.due = min(duty.due, now)
        for duty in self._duties:
            if self._clock.now() >= duty.due or self._stirred(duty):
                self._perform(duty)

    def _stirred(self, duty: Duty) -> bool:
        return duty.on_write and not duty.failures and duty.seen != self._store.writes

    def _perform(self, duty: Duty) -> None:
        duty.seen = self._store.writes
        try:
            if self._lease is not None:
                self._lease.hold()
            duty.work()
            duty.failures = 0
        except LeaseLost:
            raise
        except NcclSlurmError as error:
            self._failed(duty, str(error))
        except Exception as error:
            _log.exception("%s", duty.name)
            self._failed(duty, f"{type(error).__name__}: {error}")
        pause = min(2.0**duty.failures, BACK_OFF_MAX_S) if duty.failures else 0.0
        duty.due = self._clock.now() + max(duty.every_s, pause)

    def _ask(self) -> None:
        """Right before what others see and no transaction guards. Raises LeaseLost where another has taken over."""
        if self._lease is not None:
            self._lease.renew()

    def _failed(self, duty: Duty, why: str) -> None:
        duty.failures += 1
        if duty.failures == 1:
            _log.warning("%s: %s", duty.name, why)
        try:
            self._store.note(duty.name, why, self._clock.now())
        except LeaseLost:
            raise
        except NcclSlurmError:
            _log.warning("%s: the store did not take a note", duty.name)

    def _open_runs(self) -> list[RunRow]:
        return [run for run in self._store.open_runs() if run.status in OPEN]

    # duties

    def _see_clock(self) -> None:
        """Where it was set back, what was to wait for seconds would wait until it has caught up. Where it leapt ahead,
        nothing is forgotten or expires until it is believed."""
        now = self._clock.now()
        if self._jumps.see(now):
            _log.warning("the clock is more than a day ahead of the last look")
            self._store.note("clock", "the clock leapt ahead, or nobody looked: nothing is forgotten for a day", now)
        if now < self._latest - STEP_S:
            self._store.look_at_comments_again(now)
            self._nodes.clock_was_set_back(now)
            self._conclusions.left.clear()
            for intake in filter(None, (self._intake, self._landed)):
                intake.look_again()
            if self._fetching is not None:
                self._fetching.look_again()
            if self._latest != float("inf"):
                _log.warning("the clock was set back by %.0f s", self._latest - now)
                self._store.note("clock", "the clock was set back", now)
        self._latest = now

    def _ask_controllers(self) -> None:
        hosts = [controller.host for controller in self._client.controllers()]
        self._conclusions.controllers = self._machines.controllers = hosts

    def _ask_databases(self) -> None:
        if self._accounting:
            self._around.layout.databases = self._client.database_hosts()

    def _ask_switches(self) -> None:
        self._around.layout.switches = self._client.switches()

    def _take_hints(self) -> None:
        self._hint(self._hints.take())

    def _take_passed_on(self) -> None:
        self._hint(self._store.take_hints())

    def _hint(self, hinted: Collection[int]) -> None:
        if hinted:
            self._hinted.update(dict.fromkeys(hinted, self._clock.now()))
            self._poll_jobs()

    def _poll_nodes(self) -> None:
        failed = self._nodes.poll()
        self._machines.polled(self._nodes.polled)
        if failed:
            self._react(failed)

    def _react(self, failed: list[NodeState]) -> None:
        """A node went down under a job that still runs."""
        names = {node.name: node for node in failed}
        for run in self._open_runs():
            hit = [names[name] for name in run.nodes if name in names]
            if hit:
                self._conclusions.live(run, f"{hit[0].name} is {hit[0].full_state}")

    def _poll_jobs(self) -> None:
        try:
            jobs = self._jobs.poll()
        except SlurmUnreachable:
            self._unanswered_since = self._unanswered_since or self._clock.now()
            raise
        self._unanswered_since = None
        if not self._accounting:
            self._ledger.enter_live(jobs)

    def _compare_published(self) -> None:
        """A daemon that stood still while it published (a file system hung) may have put an older copy there."""
        self._conclusions.find_unpublished(self._clock.now() - 2 * FORGET_EVERY_S)

    def _give_way(self) -> None:
        """slurmctld has not answered here for a term, and a stand-by says that it does there."""
        since, term = self._unanswered_since, self._config.daemon.lease_s
        if since is None or self._clock.now() - since < term:
            return
        if any(other.reaches_slurm and other.seen_s <= term for other in self._store.standbys()):
            raise LeaseLost("slurmctld does not answer here, but on the host of a stand-by: the lease is given back")

    def _look_back(self) -> None:
        """Runs whose events were lost: found in accounting, in windows that overlap."""
        if not self._accounting:
            return
        now = self._clock.now()
        last = self._store.value("last-look-back") or 0
        last = 0 if last > now else last  # by a clock that was ahead: when it was is not known
        since = max(last - OVERLAP_S, now - self._config.daemon.look_back_h * 3600)
        self._ledger.reconcile(since=since)
        self._store.set_value("last-look-back", int(now))

    def _reconcile_open(self) -> None:
        if self._accounting:
            self._ledger.reconcile(run.raw_id for run in self._open_runs())

    def _reconcile_hinted(self) -> None:
        """Accounting tells the final state at once when a job ends; a hint is kept until it does, or for a minute."""
        if not self._accounting:
            self._hinted.clear()
        if not self._hinted:
            return
        self._ledger.reconcile(self._hinted)
        still_open = {run.raw_id for run in self._open_runs()}
        oldest = self._clock.now() - HINT_KEPT_S
        self._hinted = {job: at for job, at in self._hinted.items() if job in still_open and at > oldest}

    def _learn(self, raw_ids: set[int]) -> None:
        """Both of Slurm's memories: slurmctld may hold what it could not yet tell slurmdbd."""
        self._poll_jobs()
        if self._accounting:
            self._ledger.reconcile(raw_ids)

    def _poll_records(self) -> None:
        if self._intake is not None:
            self._intake.poll()
        elif self._fetching is None:
            raise InputError("paths.shared is empty: no node records come in; set it in nccl-slurm.toml, or ssh.user")

    def _fetch(self) -> None:
        if self._fetching is not None:
            self._fetching.tick(self._conclusions.settling(), self._nodes.polled)

    def _poll_landed(self) -> None:
        if self._landed is not None and os.path.isdir(landing_of(self._config)):
            self._landed.poll()

    def _renew_proposals(self) -> None:
        late_boot_s = self._around.policy.limit("late-boot-s")
        self._proposals.tick(self._around.room(), self._jumps.believed(self._clock.now()), late_boot_s)

    def _forget(self) -> None:
        if not self._jumps.held:
            self._forgetting.turn()

    def _remove_parts(self) -> None:
        if self._intake is not None and not self._jumps.held:
            self._intake.remove_parts()
        if self._landed is not None and not self._jumps.held and os.path.isdir(landing_of(self._config)):
            self._landed.remove_parts()

    def _settle(self) -> None:
        if not self._conclusions.settling():
            return
        nodes = next(duty for duty in self._duties if duty.name == "nodes")
        nodes.due = min(nodes.due, self._clock.now() + SETTLING_POLL_S)
        self._conclusions.settle(self._nodes.last_completing)

    def _heartbeat(self) -> None:
        self._store.set_value("heartbeat", int(self._clock.now()))
        if (backend := self._client.backend) != self._backend:
            self._store.set_value("pyslurm", int(backend == "pyslurm"))
            self._backend = backend
        self._notifier.alive("watching")
