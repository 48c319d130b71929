"""Two runs of the doctor: what changed between them. Pure. Used to confirm that a remedy helped.

A finding that is not there any more counts as gone only where its check was made again on the same node, of the same
thing, and passed. A node that was not looked at this time, a check that saw nothing or does not apply any more (the GPU
is gone, the tool was removed), an event before the window of this run, ranks that have ended: *not seen again*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

__all__ = ["Change", "compared", "differences"]

Kind = Literal["new", "worse", "better", "gone", "unseen", "still"]
_KINDS: tuple[Kind, ...] = ("new", "worse", "still", "unseen", "better", "gone")
#: Higher is worse; UNKNOWN is no grade.
_GRADE = {"PASS": 0, "NOT-APPLICABLE": 0, "WARN": 1, "FAIL": 2}
#: Judged of events in a window of time.
_OF_EVENTS = ("node.xid", "node.oom", "node.kernel", "aws.events", "aws.health-agent", "aws.deep-check")
#: Judged of ranks, and without any of what would start them, or not at all.
_OF_RANKS = (
    *("node.memlock", "node.nofile", "node.stack", "node.shm", "node.huge-pages", "node.dns"),
    *("node.ofi-plugin", "node.libfabric", "node.nccl-library", "node.ras"),
)


@dataclass(frozen=True)
class Change:
    """``before``, ``after``: ``FAIL P0``, ``UNKNOWN``, None: nothing was said. ``nodes`` empty: the cluster."""

    kind: Kind
    check: str
    before: str | None
    after: str | None
    nodes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        told = {"kind": self.kind, "check": self.check, "before": self.before, "after": self.after}
        return {**told, "nodes": list(self.nodes)}


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Both as `result.Result.to_json` made them. Checks that found nothing in either are left out."""
    old, new = _by_place(before), _by_place(after)
    other = {*_before_the_window(before, after), *_of_ended_ranks(before, after), *_of_another_job(before, after)}
    if _other(before, after, "cluster"):  # a node of that name there is another machine
        return [*_all("new", new, after=True), *_all("unseen", old, after=False)]
    groups: dict[tuple[Kind, str, str | None, str | None], list[str]] = {}
    for check, node in sorted(old.keys() | new.keys()):
        was, now = old.get((check, node)), new.get((check, node)) or _of_all(check, node, new, before, after)
        kind = _kind(was, now)
        if kind in ("gone", "better") and (check, node) in other:
            kind = "unseen"
        if kind is not None:
            groups.setdefault((kind, check, was, now), []).append(node)
    changes = [Change(*key, nodes=[node for node in nodes if node]) for key, nodes in groups.items()]
    return sorted(changes, key=lambda one: (_KINDS.index(one.kind), one.check))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Of what the two runs were, in words; empty where they were of the same, or one of them does not tell."""
    found = [(key, _other(before, after, key)) for key in ("cluster", "job")]
    return [f"that run was of {key} {other}: {_MEANS[key]}" for key, other in found if other]


_MEANS = {
    "cluster": "nothing of it can be seen again here",
    "job": "what it says of that job's ranks can't be seen again here",
}


def _other(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """What the earlier run was of, where this one is of another."""
    was, now = before.get(key), after.get(key)
    return str(was) if was and now and was != now else ""


def _all(kind: Kind, told: Mapping[tuple[str, str], str], *, after: bool) -> Iterator[Change]:
    groups: dict[tuple[str, str], list[str]] = {}
    for (check, node), word in sorted(told.items()):
        if _is_bad(word):
            groups.setdefault((check, word), []).append(node)
    for (check, word), nodes in groups.items():
        named = [node for node in nodes if node]
        yield Change(kind, check, None if after else word, word if after else None, named)


def _of_another_job(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(check, node) of ranks and of the job itself."""
    if _other(before, after, "job"):
        for one in before["findings"]:
            if one["check"].startswith("job.") or one["check"] in _OF_RANKS:
                yield from ((one["check"], node) for node in one["nodes"] or [""])


def _by_place(told: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(check, node) → its worst word; the node of a finding of the whole cluster is empty."""
    found: dict[tuple[str, str], str] = {}
    for one in told["findings"]:
        word = " ".join(filter(None, (one["status"], one["priority"])))
        for node in one["nodes"] or [""]:
            key = (one["check"], node)
            found[key] = max(found.get(key, word), word, key=_rank)
    return found


def _of_all(
    check: str, node: str, new: Mapping[tuple[str, str], str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> str | None:
    """Checks of the scheduler and of a job say that all is well once, of no node: where this one was among those that
    were looked at, it is of this one too."""
    whole = new.get((check, ""))
    if not node or whole != "PASS":
        return None
    chosen = after["nodes"]["chosen"]
    if check.startswith("scheduler."):
        return whole if not chosen or node in chosen else None
    same = before.get("job") is not None and before.get("job") == after.get("job")
    seen = node in after["nodes"].get("with_ranks", ()) and after["nodes"]["of"] is None
    return whole if check.startswith("job.") and same and seen else None


def _before_the_window(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(check, node) of events that the later run would not have told. Times are RFC 3339 in UTC: they order as text.
    Without a window a node is asked for what its boot brought: an event that it does not tell any more was before, and
    a finding without a time is none (what the driver asks for now)."""
    for one in before["findings"]:
        start = after.get("since") or (_day_before(after["time"]) if one["check"].startswith("aws.") else None)
        gone = one["since"] is not None if start is None else (one["since"] or before.get("since") or "") < start
        if one["check"] in _OF_EVENTS and gone:
            yield from ((one["check"], node) for node in one["nodes"] or [""])


def _day_before(time: str) -> str:
    """AWS is asked for a day's events where no window is given."""
    day = datetime.fromisoformat(time.removesuffix("Z") + "+00:00") - timedelta(days=1)
    return day.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _of_ended_ranks(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(check, node) where ranks ran then, and none now."""
    had = set(before["nodes"].get("with_ranks", ())) - set(after["nodes"].get("with_ranks", ()))
    yield from ((check, node) for check in _OF_RANKS for node in had)


def _rank(word: str) -> tuple[float, str]:
    """P0 is worse than P1; UNKNOWN is told where nothing else is wrong."""
    status, _, priority = word.partition(" ")
    return _GRADE.get(status, 0.5), "".join(str(9 - int(sign)) for sign in priority if sign.isdigit())


def _kind(was: str | None, now: str | None) -> Kind | None:
    bad_before, bad_now = _is_bad(was), _is_bad(now)
    if bad_before and bad_now:
        return "still" if was == now else "worse" if _rank(str(now)) > _rank(str(was)) else "better"
    if bad_now:
        return "new"
    if bad_before:
        return "gone" if now == "PASS" else "unseen"
    return None


def _is_bad(word: str | None) -> bool:
    return word is not None and word.split(" ")[0] in ("FAIL", "WARN")
