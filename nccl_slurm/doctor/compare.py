"""Two runs of the doctor: what changed between them. Pure. Used to confirm that a remedy helped.

A finding that is not there any more counts as gone only where its check was made again on the same node and said
something: a node that was not looked at this time, or a check that saw nothing, is *not seen again*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Change", "compared"]

Kind = Literal["new", "worse", "better", "gone", "unseen", "still"]
_KINDS: tuple[Kind, ...] = ("new", "worse", "still", "unseen", "better", "gone")
#: Higher is worse; UNKNOWN is no grade.
_GRADE = {"PASS": 0, "NOT-APPLICABLE": 0, "WARN": 1, "FAIL": 2}


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
    groups: dict[tuple[Kind, str, str | None, str | None], list[str]] = {}
    for check, node in sorted(old.keys() | new.keys()):
        was, now = old.get((check, node)), new.get((check, node))
        if (kind := _kind(was, now)) is not None:
            groups.setdefault((kind, check, was, now), []).append(node)
    changes = [Change(*key, nodes=[node for node in nodes if node]) for key, nodes in groups.items()]
    return sorted(changes, key=lambda one: (_KINDS.index(one.kind), one.check))


def _by_place(told: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(check, node) → its worst word; the node of a finding of the whole cluster is empty."""
    found: dict[tuple[str, str], str] = {}
    for one in told["findings"]:
        word = " ".join(filter(None, (one["status"], one["priority"])))
        for node in one["nodes"] or [""]:
            key = (one["check"], node)
            found[key] = max(found.get(key, word), word, key=_rank)
    return found


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
        return "unseen" if now is None or now == "UNKNOWN" else "gone"
    return None


def _is_bad(word: str | None) -> bool:
    return word is not None and word.split(" ")[0] in ("FAIL", "WARN")
