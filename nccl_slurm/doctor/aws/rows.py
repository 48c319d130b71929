"""The words of AWS as data: ``data/aws.toml``, each row with its source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nccl_slurm.doctor.check import Priority, Status
from nccl_slurm.tables import packaged

__all__ = ["Rows", "Word", "is_denied", "load"]


@dataclass(frozen=True)
class Word:
    """What a word of the service means. ``match``: parts of a text in lower case, one of which it has. ``subject``:
    they name what the text is about, and not a fault. ``machine``: it is over when the instance is gone."""

    id: str
    status: Status
    priority: Priority | None
    means: str
    source: str
    match: Sequence[str] = ()
    subject: bool = False
    machine: bool = False


@dataclass(frozen=True)
class Rows:
    """``efa``: instance types with EFA begin with one of these. ``covered``, ``uncovered``: on an EKS cluster."""

    cluster: Mapping[str, Word]
    group: Mapping[str, Word]
    instance: Mapping[str, Word]
    event: Sequence[Word]
    agent: Sequence[Word]
    efa: Sequence[str]
    covered: Sequence[str]
    uncovered: Sequence[str]

    def has_efa(self, kinds: Iterable[str]) -> bool:
        return any(kind.startswith(tuple(self.efa)) for kind in kinds)

    def of_event(self, text: str) -> Word | None:
        return _first(self.event, text)

    def of_agent(self, text: str) -> Word | None:
        return _first(self.agent, text)


_KINDS = ("cluster-status", "group-status", "node-status", "event", "agent")


@cache
def load() -> Rows:
    tree = packaged("aws.toml")
    words = {kind: [_word(row) for row in tree[kind]] for kind in _KINDS}
    return Rows(
        cluster={word.id: word for word in words["cluster-status"]},
        group={word.id: word for word in words["group-status"]},
        instance={word.id: word for word in words["node-status"]},
        event=tuple(words["event"]),
        agent=tuple(words["agent"]),
        efa=tuple(kind for row in tree["efa"] for kind in row["types"]),
        covered=tuple(row["what"] for row in tree["eks"] if row["covered"]),
        uncovered=tuple(row["what"] for row in tree["eks"] if not row["covered"]),
    )


def _word(row: Mapping[str, Any]) -> Word:
    return Word(
        id=row["id"],
        status=row["status"],
        priority=row.get("priority"),
        means=row["means"],
        source=row["source"],
        match=tuple(row.get("match", ())),
        subject=row.get("subject", False),
        machine=row.get("machine", False),
    )


#: In front of what was not found: *no hardware failure*, *without any sign of a rollback*.
_DENIED = re.compile(
    r"\b(?:(?:no|without|0|zero)(?: (?:any|signs? of|need for|need to))*(?: \w+)?"
    r"|not (?:due to|caused by|a|an|any)"
    r"|(?:not|n't|never) (?:report|find|detect|show|see|have|encounter)(?: any)?)\s\Z",
    re.IGNORECASE,
)
#: Behind what did not come about, or is over: *reboot was cancelled*.
_UNDONE = re.compile(
    r"\w*(?: simulation| test| drill)?(?: (?:is|was|were|has been|have been))?"
    r" (?:not (?:required|needed|necessary|started|performed)|unnecessary|cancell?ed|skipped|disabled|resolved)\b"
)


def is_denied(before: str) -> bool:
    """``before``: the text in front of what is told."""
    return _DENIED.search(before[-80:]) is not None


def _first(words: Sequence[Word], text: str) -> Word | None:
    low = text.lower()
    return next((word for word in words if any(_says(low, part) for part in word.match)), None)


def _says(text: str, part: str) -> bool:
    """At one place at least it is neither denied nor undone."""
    places = re.finditer(re.escape(part), text)
    return any(not is_denied(text[: one.start()]) and _UNDONE.match(text, one.end()) is None for one in places)
