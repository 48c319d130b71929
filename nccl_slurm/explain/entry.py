"""One word that can be explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["KINDS", "SCHEMA", "Entry"]

#: Kinds of words, in the order in which they are listed.
KINDS = ("class", "action", "xid", "reason", "reading", "rule", "word", "pattern", "guide")
SCHEMA = "nccl-slurm/explain/1"


@dataclass(frozen=True)
class Entry:
    """``failure_class`` and ``action`` are words of the report; None where the word has none.

    ``words``: lower-case literals by which a reason is known. ``example``: a line that a pattern row matches.
    ``related``: other words that lead here or on. ``symptom`` to ``commands``: of sections of the guide alone, where
    ``commands`` hold a word in capitals in the place of what a finding of the doctor would fill in.
    """

    kind: str
    name: str
    means: str
    proof: str
    source: str
    steps: Sequence[str] = ()
    failure_class: str | None = None
    action: str | None = None
    role: str | None = None
    producer: str | None = None
    versions: str | None = None
    example: str | None = None
    related: Sequence[str] = ()
    words: Sequence[str] = ()
    symptom: str | None = None
    cause: str | None = None
    verify: str | None = None
    blast_radius: str | None = None
    commands: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Every key present, null where there is nothing to say."""
        lists = {"steps": list(self.steps), "related": list(self.related), "commands": list(self.commands)}
        value = {**asdict(self), "class": self.failure_class, **lists}
        del value["failure_class"], value["words"]
        return value
