"""Keeps the open recommendations in step with the verdicts; what each change was goes into the audit log."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from nccl_slurm.clock import Clock
from nccl_slurm.config import Config
from nccl_slurm.daemon.anew import beside, due_again, handed_over, overtaken, stayed_away
from nccl_slurm.daemon.diagnose import Diagnosis
from nccl_slurm.daemon.health import REMOVED
from nccl_slurm.daemon.runs import key_of
from nccl_slurm.history.rows import RecommendationRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.recommend.step import HEAVY
from nccl_slurm.review.outcome import outcome
from nccl_slurm.review.queue import Change, Source, by_daemon, due, given_up, renew

__all__ = ["Proposals"]

_DAY_S = 86400.0


@dataclass
class Proposals:
    config: Config
    store: Store
    clock: Clock
    #: Recommendations whose runs were judged again by `tick`, and when these had changed last: nothing came of it.
    looked_at: dict[int | None, float] = field(default_factory=dict)

    def renew(self, run: RunRow, found: Diagnosis, *, speaks: bool) -> None:
        """What the verdict on this run asks of machines takes the place of what it asked before."""
        wanted = [one for one in found.recommendations if one.target is not None] if speaks else []
        source = self._source(run, found)
        machines = [source.identities.get(one.target or "", one.target or "") for one in wanted]
        known = self.store.recommendations_of(machines, key_of(run))
        if wanted or known:
            expire_s = self.config.review.expire_days * _DAY_S
            now = self.clock.now()
            changes = renew(known, wanted, source, now=now, expire_s=expire_s, carried_out=self._carried_out)
            self._store(changes, known)
            others = (row for row in self.store.active_recommendations() if row.key != source.key)
            self._judge_again(beside(others, wanted, source.failure_class))
            for identity in given_up(changes, source):
                self._judge_another(identity, run)

    def tick(self, room: int, believed: float, late_boot_s: float) -> None:
        """Snoozes that are over, recommendations that are done or too old to be believed; then what waits for room
        below the fleet's cap, and what was overtaken. ``room``: how many nodes may have a reboot or replace open.
        ``believed``: the time by which something is old. ``late_boot_s``: how long a boot may take after Slurm gave up
        on it."""
        active = self.store.active_recommendations()
        now = self.clock.now()
        closed = [(replace(row, state="done", changed=now), "done") for row in active if self._is_done(row)]
        closed += handed_over(_without(active, closed), self._identity_now, now)
        expire_s = self.config.review.expire_days * _DAY_S
        self._store([*closed, *due(_without(active, closed), believed, expire_s)], active)
        active = self.store.active_recommendations()
        found = [*due_again(active, room), *overtaken(active, self.store.machine_of)]
        found += stayed_away(active, self.store.machine_of, now - late_boot_s)
        fresh = [row for row in found if self.looked_at.get(row.number) != row.changed]
        self.looked_at = {row.number: row.changed for row in found}
        self._judge_again(fresh)

    def _judge_another(self, identity: str, run: RunRow) -> None:
        """The newest other run that named this machine, as long ago as what is open is believed."""
        machine = self.store.machine_of(identity, self.clock.now() - self.config.review.expire_days * _DAY_S)
        named = [event.data for event in machine.of_kind("job") if event.data.get("named")] if machine else []
        others = [(job["job"], job["run"]) for job in named if (job["job"], job["run"]) != (run.id, run.run)]
        for job, number in others[-1:]:
            self.store.judge_again({key_of(one) for one in self.store.runs_of(job) if one.run == number})

    def _judge_again(self, rows: Iterable[RecommendationRow]) -> None:
        keys = {row.key for row in rows}
        if keys:
            self.store.judge_again(keys)

    def _is_done(self, row: RecommendationRow) -> bool:
        return row.state == "accepted" and row.action in HEAVY and self._carried_out(row)

    def _carried_out(self, row: RecommendationRow) -> bool:
        came = outcome(row, self.store.machine_of(row.identity, row.decided or 0.0))
        return came is not None and came.carried_out is not None

    def _identity_now(self, node: str) -> str | None:
        """None for a name that no machine has now, or that nobody ever polled; empty where Slurm has no such node."""
        if any(edge.state == REMOVED for edge in self.store.last_node_events([node])):
            return ""
        places = self.store.generations(node)
        return places[-1].identity if places and places[-1].until is None else None

    def _identity(self, node: str, told: str | None, at: float) -> str | None:
        """The machine that the store has under this name: by the record where it believes that, else by the time. Two
        live nodes that tell one identity are told apart by their names."""
        places = self.store.generations(node)
        if told in {place.identity for place in places}:
            return told
        held = [place for place in places if place.since <= at and (place.until is None or place.until > at)]
        return (held or places)[-1].identity if places else told

    def _source(self, run: RunRow, found: Diagnosis) -> Source:
        verdict = found.report["verdict"]
        at = run.end if run.start is None else run.start
        told = {node.name: node.identity for node in found.evidence.nodes}
        targets = [one.target for one in found.recommendations if one.target is not None]
        known = {node: self._identity(node, told.get(node), at or self.clock.now()) for node in targets}
        return Source(
            cluster=run.cluster,
            raw_id=run.raw_id,
            run=run.run,
            job=run.id,
            failure_class=verdict["class"] if verdict else "unknown",
            identities={node: identity for node, identity in known.items() if identity},
        )

    def _store(self, changes: Sequence[Change], known: Sequence[RecommendationRow]) -> None:
        """A person may decide at the same moment: then nothing is stored, and the next look finds it so."""
        now, host = self.clock.now(), socket.gethostname()[:255]
        touched = {row.number for row, _ in changes}
        lines = [(row, by_daemon(row, what, now, host)) for row, what in changes]
        if lines:
            self.store.save_recommendations(lines, was=[row for row in known if row.number in touched])


def _without(rows: Iterable[RecommendationRow], closed: Iterable[Change]) -> list[RecommendationRow]:
    numbers = {row.number for row, _ in closed}
    return [row for row in rows if row.number not in numbers]
