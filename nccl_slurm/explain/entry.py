"""One word that can be explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["KINDS", "SCHEMA", "Entry"]

#: Kinds of words, in the order in which they are listed.
KINDS = ("class", "action", "xid", "reason", "reading", "pattern")
SCHEMA = "nccl-slurm/explain/1"


@dataclass(frozen=True)
class Entry:
    """``failure_class`` and ``action`` are words of the report; None where the word has none.

    ``words``: lower-case literals by which a reason is known. ``example``: a line that a pattern row matches.
    ``related``: other words that lead here or on.
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

    def to_json(self) -> dict[str, Any]:
        """Every key present, null where there is nothing to say."""
        value = {**asdict(self), "class": self.failure_class, "steps": list(self.steps), "related": list(self.related)}
        del value["failure_class"], value["words"]
        return value
