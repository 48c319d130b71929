"""Runs that ended: wait for their records, then verdict, report, comment. And the live verdict when a node fails."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from nccl_slurm.attribute.live import ALL_SILENT, Quiet
from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.diagnose import Diagnosis, Parts, collector_at_rest, diagnose, goes_on, silent, went_well
from nccl_slurm.daemon.disposition import disposition, in_scope
from nccl_slurm.daemon.earlier import earlier, keep
from nccl_slurm.daemon.outcomes import outcomes
from nccl_slurm.daemon.output import OutputReader, Wanted, parsed_from_json
from nccl_slurm.daemon.proposals import Proposals
from nccl_slurm.daemon.publish import is_published, publish
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.daemon.settle import in_groups, in_turn, settled
from nccl_slurm.daemon.surroundings import Surroundings
from nccl_slurm.errors import NcclSlurmError
from nccl_slurm.history.rows import ReportRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.model import Gap, Job, Parsed

__all__ = ["Conclusions", "output_of"]

_log = logging.getLogger(__name__)
#: A thousand jobs that end at once must not keep the other duties waiting, the watchdog's sign of life among them.
TURN_S = 5.0
#: Readers at the same time, and outputs of one user that a reader is given. A reader takes 0.2 s of a core before its
#: first file, for starting Python and compiling the patterns; a small output takes milliseconds.
AT_ONCE, TOGETHER = 4, 8
AT_A_TIME = 200
LEFT_S = 600.0

_UNREAD = Parsed(gaps=(Gap("job output", CAPTURE_OFF),))


@dataclass
class Conclusions:
    """``controllers`` are the hosts of slurmctld, kept up to date by the loop. ``ask`` raises where this daemon may
    not write any more (`daemon.lease`)."""

    config: Config
    store: Store
    clock: Clock
    reader: OutputReader
    proposals: Proposals
    around: Surroundings
    controllers: Sequence[str] = ()
    unpublished: set[tuple[str, int, int]] = field(default_factory=set)
    #: Runs on which nothing could be said for a fault of ours, and until when they are left: others wait behind them.
    left: dict[tuple[str, int, int], float] = field(default_factory=dict)
    #: Of the runs in hand those whose job does not want its lines read.
    quiet: set[tuple[str, int, int]] = field(default_factory=set)
    #: 1 after an output that took a reader's whole time: those behind it are not to share its fate.
    together: int = TOGETHER
    ask: Callable[[], None] = lambda: None

    def settling(self) -> list[RunRow]:
        return [run for run in self.store.open_runs() if run.status == "settling"]

    def settle(self, last_completing: Mapping[str, float]) -> int:
        """Concludes runs whose time has come, for some seconds; returns how many."""
        began, done = self.clock.now(), 0
        groups = in_groups(in_turn(self._ready(last_completing)), self.together)
        self.together = TOGETHER
        while groups and self.clock.now() - began <= TURN_S:
            hand = [key_of(run) for group in groups[:AT_ONCE] for run in group]
            self.quiet = {key for key in hand if self.store.is_quiet(*key)}
            for run, read in self._read_all(groups[:AT_ONCE]):
                if read is None:
                    self.together = 1
                else:
                    self._conclude_or_leave(run, read)
                    done += 1
            del groups[:AT_ONCE]
        return done

    def _ready(self, last_completing: Mapping[str, float]) -> list[RunRow]:
        now, arrived = self.clock.now(), self.store.record_nodes_of_settling()
        waiting = [run for run in self.settling() if self.left.get(key_of(run), 0.0) <= now]
        return [run for run in waiting if self._settled(run, arrived.get(key_of(run), ()), last_completing)]

    def _settled(self, run: RunRow, arrived: Collection[str], last_completing: Mapping[str, float]) -> bool:
        return settled(
            run.nodes,
            arrived,
            end=run.end or 0.0,
            last_completing=last_completing,
            now=self.clock.now(),
            settle_s=self.config.daemon.settle_s,
            cap_s=self.config.daemon.settle_cap_s,
        )

    def _conclude_or_leave(self, run: RunRow, read: Parsed) -> None:
        """What the store or Slurm refuses is no fault of this run: that goes up."""
        try:
            self.conclude(run, read)
        except NcclSlurmError:
            raise
        except Exception as error:
            _log.exception("job %s run %d", run.id, run.run)
            self.left[key_of(run)] = self.clock.now() + LEFT_S
            why = f"job {run.id} run {run.run}: {type(error).__name__}: {error}"
            self.store.note("verdicts", why, self.clock.now())

    @collector_at_rest()
    def conclude(self, run: RunRow, read: Parsed) -> None:
        """The last word on a run, until a late record comes. ``read`` is what its own output says now."""
        if _went_well(run):
            # a text that is there is a live verdict's, which the end did not bear out
            speaks = self.store.comment_of(*key_of(run)) is not None
            self._finish(run, went_well(self._parts(run, Parsed())), speaks=speaks)
            return
        found = diagnose(self._parts(run, self._kept(run, read)), "final", run_in_comment=self._number_if_old(run))
        scope = self.config.scope_of(run.partition)
        inside = in_scope(scope, run.gpus, found.of_interest)
        speaks = inside and not self._before_us(run)
        found = found if inside else replace(found, report=_out_of_scope(found.report, scope))
        self._finish(replace(run, disposition="diagnose" if speaks else "record"), found, speaks=speaks)

    def _before_us(self, run: RunRow) -> bool:
        """It ended before this store began, and no node told of it: a weak verdict must not replace what an earlier
        installation or a lost store had written."""
        return (run.end or 0.0) < (self.store.value("born") or 0) and not self.store.record_nodes(*key_of(run))

    def live(self, run: RunRow, why: str) -> None:
        """A node of a running job failed: say so now. The final verdict follows when the job has ended."""
        _log.info("job %s run %d: %s", run.id, run.run, why)
        found = diagnose(self._parts(run, self._kept(run, self._read(run))), "live")
        if found.report["verdict"]["culprits"] and in_scope(
            self.config.scope_of(run.partition), run.gpus, found.of_interest
        ):
            self._keep(run, found)
            self._queue(run, found)

    def silent(self, run: RunRow, quiet: Quiet) -> bool:
        """A running job shows nothing any more: say so now. False where it is out of scope, or a live verdict names
        somebody."""
        kept = self._live_report(run)
        if kept is not None and kept["verdict"]["culprits"]:
            return False
        found = silent(self._parts(run, self._kept(run, self._read(run))), quiet)
        if not in_scope(self.config.scope_of(run.partition), run.gpus, found.of_interest):
            return False
        _log.info("job %s run %d: %s", run.id, run.run, found.report["verdict"]["summary"])
        self._keep(run, found)
        self._queue(run, found)
        return True

    def was_silent(self, run: RunRow) -> bool:
        """Whether `silent` has the last word on it."""
        kept = self._live_report(run)
        return kept is not None and any(step["rule"] == ALL_SILENT for step in kept["inferences"])

    def _live_report(self, run: RunRow) -> Mapping[str, Any] | None:
        kept = self.store.report(*key_of(run))
        return kept.report if kept is not None and kept.report["status"] == "live" else None

    def goes_on(self, run: RunRow, silent_s: float) -> None:
        """What `silent` said holds no more, where nothing else was said since."""
        if not self.was_silent(run):
            return
        found = goes_on(self._parts(run, Parsed()), silent_s)
        self._keep(run, found)
        self._queue(run, found)

    def _parts(self, run: RunRow, output: Parsed) -> Parts:
        until, records = self.clock.now(), self.store.records(*key_of(run))
        return Parts(
            job=_with_name(run.as_job()),
            records=records,
            events=self.store.node_events(list(run.nodes), until=until),
            output=output,
            controllers=self.controllers,
            earlier=None if _went_well(run) else earlier(self.store, run, records),
            machines=None if _went_well(run) else self.around.past(run),
            site=None if _went_well(run) else self.around.site(run, records, self.controllers),
            policy=self.around.policy,
            now=until,
        )

    def _read_all(self, groups: Sequence[Sequence[RunRow]]) -> list[tuple[RunRow, Parsed | None]]:
        """Each group by a child process of its own, so the waiting is done by threads."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [pair for pairs in pool.map(self._read_group, groups) for pair in pairs]

    def _read_group(self, runs: Sequence[RunRow]) -> list[tuple[RunRow, Parsed | None]]:
        """None: to be read later. Leaves the store alone: called from several threads."""
        bad = [run for run in runs if not _went_well(run) and key_of(run) not in self.quiet]
        well = [(run, Parsed()) for run in runs if _went_well(run)]
        quiet = [(run, _UNREAD) for run in runs if not _went_well(run) and key_of(run) in self.quiet]
        return [*well, *quiet, *zip(bad, self._read_bad(bad), strict=True)]

    def _read_bad(self, runs: Sequence[RunRow]) -> Sequence[Parsed | None]:
        if not runs or runs[0].uid is None:
            return [Parsed(gaps=(Gap("job output", "Slurm told no user"),))] * len(runs)
        return self.reader.read_each([output_of(run) for run in runs], runs[0].uid)

    def _read(self, run: RunRow) -> Parsed:
        (read,) = self._read_bad([run])
        return read or Parsed()

    def _kept(self, run: RunRow, read: Parsed) -> Parsed:
        """What was read last time stands in where the output is gone or can't be read any more."""
        if read is _UNREAD:
            return read
        if read.facts or read.ranks:
            if self.store.shares_output(run):
                read = _without_ranks(read)
            self.store.save_output(*key_of(run), _as_json(read))
            return read
        kept = self.store.output(*key_of(run))
        return parsed_from_json(kept) if kept else read

    def _finish(self, run: RunRow, found: Diagnosis, *, speaks: bool) -> None:
        """Final comes last: a daemon that dies on the way does all of it again, and nothing of it twice."""
        self._keep(run, found)
        keep(self.store, run, found.evidence)
        self.proposals.renew(run, found, speaks=speaks)
        if speaks:
            self._queue(run, found)
        counted = self.clock.now() - self.config.history.runs_days * 86400.0
        self.store.set_outcomes(outcomes(run, found.report), run.start, counted)
        self.store.upsert_run(replace(run, status="final"))
        _log.info("job %s run %d: %s", run.id, run.run, found.report["verdict"]["summary"])

    def _keep(self, run: RunRow, found: Diagnosis) -> None:
        self.store.save_report(*key_of(run), found.report, self.clock.now())
        kept = self.store.report(*key_of(run))
        if self.config.paths.shared and run.uid is not None and kept is not None:
            self._publish(run, kept, run.uid)

    def _publish(self, run: RunRow, kept: ReportRow, uid: int) -> None:
        folder = os.path.join(self.config.paths.shared, "reports")
        owners = self.config.daemon.record_uids
        newest = self._number_if_old(run) is None
        self.ask()
        why = publish(folder, kept.report, uid, made=kept.at, newest=newest, owners=owners)
        if why is None:
            self.unpublished.discard(key_of(run))
            return
        self.unpublished.add(key_of(run))
        self.store.note("publish", why, self.clock.now())

    def find_unpublished(self, since: float) -> None:
        """Reports that a daemon before this one made, and died, or stopped while the shared folder was away; and those
        of a store that was restored, where a daemon had published newer ones."""
        folder = os.path.join(self.config.paths.shared, "reports")
        for key, job_id, made in self.store.report_times(since) if self.config.paths.shared else ():
            if not is_published(folder, job_id, key[2], made):
                self.unpublished.add(key)

    def publish_again(self) -> None:
        """The shared folder was away when these reports were made."""
        for key in sorted(self.unpublished)[:AT_A_TIME]:
            run, kept = self.store.run(*key), self.store.report(*key)
            if run is not None and kept is not None and run.uid is not None:
                self._publish(run, kept, run.uid)

    def _number_if_old(self, run: RunRow) -> int | None:
        others = self.store.runs_of_raw(run.cluster, run.raw_id)
        return run.run if others and others[-1].run != run.run else None

    def _queue(self, run: RunRow, found: Diagnosis) -> None:
        if found.comment is None or not self.config.comment.enabled:
            return
        self.store.queue_comment(*key_of(run), found.comment, self.clock.now())


def _went_well(run: RunRow) -> bool:
    """By its end, not by its stored disposition: a failed run that was out of scope is stored as recorded too."""
    return disposition(run.as_job())[0] == "record"


def output_of(run: RunRow) -> Wanted:
    """What Slurm and the batch script tell of it."""
    return Wanted(list(dict.fromkeys(p for p in (run.stdout, run.stderr, *run.log_paths) if p)), run.start or 0.0)


def _without_ranks(read: Parsed) -> Parsed:
    """Several jobs or array tasks wrote into one file: whose rank 3 it is can't be told."""
    facts = [replace(fact, rank=None, data={k: v for k, v in fact.data.items() if k != "task"}) for fact in read.facts]
    gap = Gap("job output", "other jobs write into the same file: its rank numbers are not used")
    return replace(read, facts=facts, ranks=(), gaps=[*read.gaps, gap], world_size=None)


def _as_json(parsed: Parsed) -> dict[str, Any]:
    return {
        "facts": [fact.to_json() for fact in parsed.facts],
        "ranks": [rank.to_json() for rank in parsed.ranks],
        "gaps": [{"source": gap.source, "why": gap.why} for gap in parsed.gaps],
        "world_size": parsed.world_size,
        "bytes_read": parsed.bytes_read,
        "lines_unknown": parsed.lines_unknown,
    }


def _out_of_scope(report: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """Says why the job got no comment."""
    lacks = {"gpu-or-evidence": "it had no GPU, and no line or file of NCCL or torch was seen"}
    why = lacks.get(scope, "jobs of its partition are only recorded")
    told = f"out of scope ({scope}): {why}; its end is recorded, and no comment is written (docs/jobs.md)"
    return {**report, "gaps": [{"source": "scope", "why": told}, *report["gaps"]]}


def _with_name(job: Job) -> Job:
    """Accounting tells who cancelled a job by uid; people know each other by name."""
    told = job.cancelled_by or ""
    if not told.isdecimal():
        return job
    if job.user and told == str(job.uid):
        return replace(job, cancelled_by=job.user)
    try:
        return replace(job, cancelled_by=pwd.getpwuid(int(told)).pw_name)
    except (KeyError, OverflowError):
        return replace(job, cancelled_by=f"uid {told}")
