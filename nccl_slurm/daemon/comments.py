"""The comment writer: at least once, one text a run, never over what users wrote.

Outside facts: a job that has ended takes a comment in accounting only, by job id, which hits its newest record; what
is written before slurmctld has sent the job's end is overwritten by it; a job that runs, or is pending again after a
requeue, takes it from scontrol. A slurmctld that restarts sends the ends of the jobs that it still knows once more,
with the comment of their submission. So the record is looked at just before each write, again `verify_s` later, and
for the last time when slurmctld no longer knows the job: MinJobAge after its end, and as much later as slurmctld was
away, since it forgets jobs once a minute. What waits for slurmdbd (StateSaveLocation/dbd.messages) may be sent for a
second time by the next slurmctld that starts (26.05, after a backup gave the control back), weeks later: then all that
ended since the start before are looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nccl_slurm.clock import Clock
from nccl_slurm.daemon.placement import Placement, place, place_live, survives
from nccl_slurm.errors import SlurmError, SlurmUnreachable
from nccl_slurm.history.rows import CommentRow
from nccl_slurm.history.store import Store
from nccl_slurm.scheduler.client import CommentField, CommentState, LiveJob, SchedulerClient

__all__ = ["CommentWriter", "Decision", "decide"]

_log = logging.getLogger(__name__)
#: Slurm keeps whole seconds.
_SAME_S = 1.5
_BATCH = 200
#: One sacctmgr takes about 0.28 s, nearly all of it waiting for slurmdbd.
AT_ONCE = 8
#: slurmctld purges jobs once a minute.
SPARE_S = 60.0
#: So often slurmctld is asked when it began; and so far before the start that was known, and before now at most, an end
#: may lie that is sent again.
_ASK_S, _BEFORE_S, _LONGEST_S = 60.0, 3600.0, 30 * 86400.0
_STARTED = "slurmctld start"
#: Of the time since the end: a job that is held after a requeue is known for weeks.
_AGAIN = 0.1
_RETRY_S = (2.0, 5.0, 10.0, 30.0, 60.0)
#: After this many looks (about a day) the text stays in the store and the report alone.
_TRIES_MAX = 1500


@dataclass(frozen=True)
class Decision:
    """``what``: accounted | live | done | wait | give-up. ``placement`` for the first two."""

    what: str
    why: str = ""
    placement: Placement | None = None


def decide(
    row: CommentRow, state: CommentState | None, live: LiveJob | None, *, uid: int | None, lower_cases: bool
) -> Decision:
    """Where the text of one run goes now; ``uid``: of the run's user. Pure."""
    if state is not None and state.final and row.end is not None and _is_last(row.end, state):
        return _placed("accounted", place(row.text, state.comment, state.admin_comment, lower_cases=lower_cases))
    if live is not None and live.state in (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "REQUEUE_HOLD",
        "REQUEUED",
        "CONFIGURING",
    ):
        if _is_another(live, row.end is not None, uid):
            return Decision("wait", "another job seems to have this id: slurmctld came back with an older state")
        if not survives(live.comment, row.text, lower_cases=lower_cases):
            return Decision("wait", "the user's comment would not survive when the line is changed after the end")
        return _placed("live", place_live(row.text, live.comment))
    if state is not None and state.final and row.end is not None and (state.end or 0.0) > row.end + _SAME_S:
        return Decision("give-up", "a newer run of the job has taken its record over")
    return Decision("wait", "accounting does not show the end yet")


def _is_last(end: float, state: CommentState) -> bool:
    """Whether the job's newest record is that of the run which ended then, or of a wait after it that came to nothing:
    requeued, and cancelled while it was pending."""
    return abs((state.end or 0.0) - end) <= _SAME_S or (not state.ran and (state.end or 0.0) > end)


def _is_another(live: LiveJob, ended: bool, uid: int | None) -> bool:
    """Whether the id was given again: only a requeue, which counts, makes another run of a job whose run has ended."""
    return (ended and live.restarts == 0) or (uid is not None and live.uid is not None and uid != live.uid)


def _placed(what: str, placement: Placement) -> Decision:
    if placement.field is None:
        return Decision("give-up", placement.why, placement)
    return Decision("done" if placement.present else what, placement.why, placement)


class CommentWriter:
    """``ask`` raises where this daemon may not write any more (`daemon.lease`)."""

    def __init__(
        self,
        client: SchedulerClient,
        store: Store,
        clock: Clock,
        verify_s: float,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._client = client
        self._store = store
        self._clock = clock
        self._verify_s = verify_s
        self._min_job_age_s = 300.0
        self._known: frozenset[int] | None = None  # raw ids that slurmctld knows, where this look has asked it
        self._asked = float("-inf")

    def tick(self) -> int:
        """Looks at what is due; returns how many comments were written. SlurmError where Slurm can't be asked."""
        self._notice_start()
        due = self._store.due_comments(self._clock.now(), _BATCH)
        if not due:
            return 0
        try:
            decisions = self._decisions(due)
        except SlurmUnreachable:
            for row in due:  # no try of the row's: however long Slurm is away, no text is given up for it
                self._store.comment_waits(row, self._clock.now() + _RETRY_S[0], "Slurm does not answer")
            raise
        except SlurmError as error:
            for row in due:
                self._later(row, str(error))
            raise
        groups = self._groups(due, decisions)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(self._call, groups))
        return sum(self._settle_group(*group, answer) for group, answer in zip(groups, answers, strict=True))

    def _notice_start(self) -> None:
        now = self._clock.now()
        if 0.0 <= now - self._asked < _ASK_S:
            return
        self._asked = now
        try:
            started = self._client.settings().started
        except SlurmError:
            return
        known = self._store.value(_STARTED)
        if started is None or known == int(started):
            return
        if known is not None:
            self._store.look_at_comments_of_ended(max(known - _BEFORE_S, now - _LONGEST_S), now + SPARE_S)
        self._store.set_value(_STARTED, int(started))

    def _decisions(self, due: Sequence[CommentRow]) -> dict[CommentRow, Decision]:
        settings = self._client.settings()
        self._min_job_age_s = settings.min_job_age_s
        if not settings.accounting:
            return {row: Decision("give-up", "no slurmdbd: store and report only") for row in due}
        states = self._client.comments([row.raw_id for row in due])
        lower_cases = self._client.lower_cases_text()
        asked = any((s := states.get(r.raw_id)) is None or not s.final or self._is_last_look(r) for r in due)
        live: Mapping[int, LiveJob] = {job.raw_id: job for job in self._client.jobs()} if asked else {}
        self._known = frozenset(live) if asked else None

        def decision(row: CommentRow) -> Decision:
            job = live.get(row.raw_id)
            run = self._store.run(row.cluster, row.raw_id, row.run) if job else None
            return decide(row, states.get(row.raw_id), job, uid=run.uid if run else None, lower_cases=lower_cases)

        return {row: decision(row) for row in due}

    def _groups(
        self, due: Sequence[CommentRow], decisions: Mapping[CommentRow, Decision]
    ) -> list[tuple[Decision, list[CommentRow]]]:
        """Rows whose text and field are equal are written in one call; the rest is settled here."""
        groups: dict[tuple[str, str], tuple[Decision, list[CommentRow]]] = {}
        alone: list[tuple[Decision, list[CommentRow]]] = []
        for row in due:
            decision = decisions[row]
            if decision.what == "accounted" and decision.placement:
                key = (str(decision.placement.field), decision.placement.text)
                groups.setdefault(key, (decision, []))[1].append(row)
            elif decision.what == "live":
                alone.append((decision, [row]))
            else:
                self._settle(row, decision)
        return [*groups.values(), *alone]

    def _settle(self, row: CommentRow, decision: Decision) -> None:
        if decision.what == "wait":
            self._later(row, decision.why)
        elif decision.what == "done":
            self._stands(row, decision.placement.field or "" if decision.placement else "")
        else:
            self._store.comment_given_up(row, decision.why)
            self._store.note("comment", f"job {row.id} run {row.run}: {decision.why}", self._clock.now())

    def _is_last_look(self, row: CommentRow) -> bool:
        """It is old enough for slurmctld to have forgotten the job, if that was at work all the time."""
        return self._clock.now() >= (row.end or 0.0) + self._min_job_age_s + SPARE_S

    def _stands(self, row: CommentRow, field: str) -> None:
        """What stands there for good once slurmctld can't send the job's end again."""
        end, now = row.end or 0.0, self._clock.now()
        if not self._is_last_look(row):
            self._store.comment_written(row, field, end + self._min_job_age_s + SPARE_S)
        elif self._known is None or row.raw_id in self._known:
            self._store.comment_written(row, field, now + max(SPARE_S, _AGAIN * (now - end)))
        else:
            self._store.comment_verified(row, field)

    def _later(self, row: CommentRow, why: str) -> None:
        if row.end is None:  # a job may run for weeks
            self._store.comment_waits(row, self._clock.now() + _RETRY_S[-1], why)
            return
        if row.tries >= _TRIES_MAX:
            self._settle(row, Decision("give-up", why))
            return
        wait = _RETRY_S[min(row.tries, len(_RETRY_S) - 1)]
        self._store.comment_later(row, self._clock.now() + wait, why)

    def _call(self, group: tuple[Decision, list[CommentRow]]) -> frozenset[int]:
        """The raw ids whose comment was written; called from several threads, so it writes nothing to the store."""
        decision, rows = group
        try:
            return self._written(decision, rows)
        except SlurmError as error:
            _log.info("comment of %s: %s", rows[0].id, error)
            return frozenset()

    def _written(self, decision: Decision, rows: Sequence[CommentRow]) -> frozenset[int]:
        placement = decision.placement or Placement(None)
        self._ask()
        if decision.what == "live":
            self._client.write_live_comment(rows[0].id, placement.text)
            return frozenset(row.raw_id for row in rows)
        field: CommentField = "admincomment" if placement.field == "admincomment" else "comment"
        return self._client.write_accounted_comment([row.id for row in rows], placement.text, field)

    def _settle_group(self, decision: Decision, rows: Sequence[CommentRow], written: frozenset[int]) -> int:
        field = decision.placement.field or "" if decision.placement else ""
        for row in rows:
            if row.raw_id in written:
                self._store.comment_written(row, field, self._clock.now() + self._verify_s)
            else:
                self._later(row, "Slurm did not take it")
        return len(written)
