"""The one shape of all checks: what is read → a pure verdict → findings. Pure.

A check never reads anything itself: it is given what was observed. What was not observed is raised as `NotObserved` by
whoever was asked for it, and becomes a finding UNKNOWN: no check has to think of it, and none can turn it into PASS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, get_args

__all__ = [
    "AREAS",
    "BY_LOOK",
    "ID",
    "PRIORITIES",
    "STATUSES",
    "Area",
    "Check",
    "Finding",
    "NotObserved",
    "Priority",
    "Proof",
    "Status",
    "judged",
]

Status = Literal["PASS", "WARN", "FAIL", "UNKNOWN", "NOT-APPLICABLE"]
#: P0 blocks training, P1 makes it slow or fragile, P2 informs.
Priority = Literal["P0", "P1", "P2"]
Area = Literal["scheduler", "node", "job", "fleet", "aws"]

STATUSES: tuple[Status, ...] = get_args(Status)
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
AREAS: tuple[Area, ...] = get_args(Area)
#: ``node.gpu-count``: the area, then the noun. Also the section of the guide that explains the finding.
ID = re.compile(r"(?:scheduler|node|job|fleet|aws)\.[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)

#: Values of a finding whose nodes were drained by the doctor's own job: after the remedy they are to be resumed.
BY_LOOK: Mapping[str, str] = {"drained_by": "this look"}

Observed = TypeVar("Observed", contravariant=True)


class NotObserved(Exception):
    """No fault of the node: nothing can be said. ``str()`` is why, in one line, with the remedy where there is one."""


@dataclass(frozen=True)
class Proof:
    """``source``: the command or the file that was read, as a person would type it. ``line``: what it said, hostile."""

    source: str
    line: str


@dataclass(frozen=True)
class Finding:
    """``nodes``: whom it concerns, empty for the cluster as a whole. ``since``: seconds since 1970 UTC, None: not told.

    ``values`` fill the guide's suggested commands (``node``, ``gpu``, ``group_id``, ``region``, ``port`` …): text,
    hostile. ``explained_by``: the id of the finding that this one follows from, set by `doctor.fold` alone.
    ``priority`` is that of the finding if it is FAIL or WARN; PASS, UNKNOWN and NOT-APPLICABLE have none.
    """

    check: str
    status: Status
    text: str
    priority: Priority | None = None
    nodes: Sequence[str] = ()
    since: float | None = None
    proofs: Sequence[Proof] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    explained_by: str | None = None

    def __post_init__(self) -> None:
        if (self.priority is None) == (self.status in ("FAIL", "WARN")):
            raise ValueError(f"{self.check}: {self.status} with priority {self.priority}")


class Check(Protocol[Observed]):
    """``sources``: keys of `doctor.sources` that it needs from a node. ``explains``: ids of findings on the same nodes
    that are mere consequences where this one is FAIL."""

    id: str
    title: str
    area: Area
    sources: Sequence[str]
    explains: Sequence[str]

    def judge(self, observed: Observed) -> Iterable[Finding]:
        """All that is to be said, PASS too. May raise `NotObserved`."""
        ...


def judged(check: Check[Observed], observed: Observed, nodes: Sequence[str] = ()) -> list[Finding]:
    """Never empty: a check that said nothing observed nothing."""
    found: list[Finding] = []
    try:
        found += check.judge(observed)
    except NotObserved as error:
        found.append(Finding(check.id, "UNKNOWN", str(error), nodes=nodes))
    return found or [Finding(check.id, "UNKNOWN", "the check said nothing", nodes=nodes)]
