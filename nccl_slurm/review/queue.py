"""What a run's verdict asks of machines, against what is open already: one active recommendation a machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.history.rows import ACTIVE, AuditRow, RecommendationRow
from nccl_slurm.model import Recommendation

__all__ = ["ACTIONS_ON_MACHINES", "Change", "Source", "by_daemon", "due", "given_up", "renew"]

#: From the least to the most that a machine may need.
ACTIONS_ON_MACHINES = ("investigate", "reboot", "replace")

#: Rules of the guards that say *nothing new for now*: what was asked before neither goes nor stays because of them.
_FOR_NOW = ("ladder.in-progress", "ladder.wait")

Change = tuple[RecommendationRow, str]


@dataclass(frozen=True)
class Source:
    """The run whose verdict speaks. ``identities``: machine by node name, as the run's own records told it."""

    cluster: str
    raw_id: int
    run: int
    job: str
    failure_class: str
    identities: Mapping[str, str]

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.cluster, self.raw_id, self.run)


def renew(
    known: Sequence[RecommendationRow],
    wanted: Iterable[Recommendation],
    source: Source,
    *,
    now: float,
    expire_s: float,
    carried_out: Callable[[RecommendationRow], bool] = lambda row: False,
) -> list[Change]:
    """Rows to be stored, each with the word for the audit log. Nothing where all stands as it should.

    ``known``: what is active of the machines that are wanted, and all that rests on this run. ``carried_out``: an
    accepted action was done, so that what comes now is a new matter.
    """
    wanted = list(wanted)
    changes: list[Change] = []
    left = {_identity(one, source) for one in wanted if one.rule in _FOR_NOW and one.action == "none"}
    asked = {_identity(one, source): one for one in wanted if one.target and one.action in ACTIONS_ON_MACHINES}
    for identity, one in asked.items():
        mine = [row for row in known if row.identity == identity]
        changes += _for_machine(mine, _fresh(one, identity, source, now, expire_s), carried_out)
    changes += [
        (replace(row, state="withdrawn", changed=now), "withdrawn")
        for row in known
        if row.key == source.key and row.state in ACTIVE and row.identity not in asked and row.identity not in left
    ]
    return changes


def due(rows: Iterable[RecommendationRow], now: float, expire_s: float) -> list[Change]:
    """What time alone changes: a snooze is over, and who snoozed it has as long to decide as at first; a recommendation
    is too old to be believed; one that was accepted so long ago will not be carried out any more, and must neither hold
    its place below the fleet's cap nor keep what comes next from being asked."""
    changes: list[Change] = []
    for row in rows:
        if row.state == "snoozed" and row.until is not None and row.until <= now:
            expires = max(row.expires, now + (row.expires - row.opened))
            changes.append((replace(row, state="open", until=None, changed=now, expires=expires), "open again"))
        elif _is_old(row, now, expire_s):
            changes.append((replace(row, state="expired", changed=now), "expired"))
    return changes


def _is_old(row: RecommendationRow, now: float, expire_s: float) -> bool:
    if row.state == "accepted":
        return row.decided is not None and row.decided + expire_s <= now
    return row.state == "open" and row.expires <= now


def given_up(changes: Iterable[Change], source: Source) -> list[str]:
    """Machines of which this run asks less than it did: another run may still ask for as much."""
    least = {row.identity: _rank(row.action) for row, word in changes if word == "opened"}
    gone = [row for row, word in changes if word in ("superseded", "withdrawn") and row.key == source.key]
    return [row.identity for row in gone if least.get(row.identity, -1) < _rank(row.action)]


def by_daemon(row: RecommendationRow, what: str, at: float, host: str) -> AuditRow:
    """``row`` without a number gets the one that it is stored under."""
    return AuditRow(at, "nccl-slurm daemon", None, None, host, what, row.number, row.node, f"{row.action}: {row.why}")


def _identity(one: Recommendation, source: Source) -> str:
    return source.identities.get(one.target or "", one.target or "")


def _for_machine(
    mine: Sequence[RecommendationRow], fresh: RecommendationRow, carried_out: Callable[[RecommendationRow], bool]
) -> list[Change]:
    active = next((row for row in mine if row.state in ACTIVE), None)
    if active is None:
        return [] if _decided_before(mine, fresh) else [(fresh, "opened")]
    if active.state == "accepted" and carried_out(active):
        return [(replace(active, state="done", changed=fresh.changed), "done"), (fresh, "opened")]
    if active.action == fresh.action and active.rule == fresh.rule:
        return _again(active, fresh)
    lower = _rank(fresh.action) <= _rank(active.action)
    if lower and active.key != fresh.key:
        return []  # another run asked for more: that stands until a person or its own evidence ends it
    return [(replace(active, state="superseded", changed=fresh.changed), "superseded"), (fresh, "opened")]


def _again(active: RecommendationRow, fresh: RecommendationRow) -> list[Change]:
    """The same thing once more: its newest reason stands, and a person's decision stays."""
    if (active.key, active.why, tuple(active.evidence)) == (fresh.key, fresh.why, tuple(fresh.evidence)):
        return []
    kept = {name: getattr(active, name) for name in ("number", "opened", "state", "until", "by", "decided", "note")}
    return [(replace(fresh, **kept), "seen again")]


def _decided_before(mine: Sequence[RecommendationRow], fresh: RecommendationRow) -> bool:
    """A person has spoken on this very run: the daemon that judges it again does not ask twice."""
    spoken = (row for row in mine if row.key == fresh.key and row.state in ("declined", "done", "expired"))
    return any(_rank(row.action) >= _rank(fresh.action) for row in spoken)


def _rank(action: str) -> int:
    return ACTIONS_ON_MACHINES.index(action) if action in ACTIONS_ON_MACHINES else -1


def _fresh(one: Recommendation, identity: str, source: Source, now: float, expire_s: float) -> RecommendationRow:
    return RecommendationRow(
        identity=identity,
        node=one.target or "",
        action=one.action,
        rule=one.rule,
        step=one.step,
        why=one.why,
        evidence=tuple(one.evidence),
        commands=tuple(one.commands),
        failure_class=source.failure_class,
        cluster=source.cluster,
        raw_id=source.raw_id,
        run=source.run,
        job=source.job,
        opened=now,
        changed=now,
        expires=now + expire_s,
    )
