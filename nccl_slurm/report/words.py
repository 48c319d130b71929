"""Sentences that the comment and the report share: who, what happened first, how a run was ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nccl_slurm.hosts import HOST, fold_numbers

__all__ = ["counted", "detail", "ending", "happened", "hosts_of", "named", "ranks_of", "writer"]

#: Classes in which the first one stood still, or may have: its peers wait. A GPU that is off the bus ends no process.
_STALLED = frozenset(
    {
        "collective-missing-rank",
        "collective-hang-unattributed",
        "watchdog-stuck",
        "straggler",
        "storage-stall",
        "gpu-hw-lost",
        "net-ib-transport",
        "unknown",
    }
)
_ENDINGS = {
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline reached",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "REVOKED": "revoked",
    "TIMEOUT": "time limit reached",
}
#: Producers whose words about a machine a folder by hand can hold as a copy.
_FORMS = {"kernel": "the kernel's", "gpu": "nvidia-smi's", "slurm": "Slurm's"}
#: ``NVRM: Xid (PCI:0000:a1:00): 79, ...``
_XID = re.compile(r"Xid \([^)]{1,40}\): (\d{1,3})\b")


def happened(failure_class: str) -> str:
    """Verb for the culprit of a class."""
    if failure_class == "collective-mismatch":
        return "diverged first"
    return "stalled first" if failure_class in _STALLED else "failed first"


def ending(state: str | None) -> str | None:
    """Plain words for a state by which someone or a limit ended the run; None for any other."""
    return _ENDINGS.get(state or "")


def detail(report: Mapping[str, Any]) -> str:
    """Class, with the Xid that the verdict rests on. Only the kernel's word (trust root) gives a number."""
    verdict = report["verdict"]
    cited = {fact for culprit in verdict["culprits"] for fact in culprit["evidence"]}
    for fact in report["facts"]:
        xid = _XID.search(fact["text"]) if fact["id"] in cited and fact["trust"] == "root" else None
        if xid:
            return f"{verdict['class']}, Xid {xid.group(1)}"
    return str(verdict["class"])


def ranks_of(culprits: Sequence[Mapping[str, Any]]) -> str:
    """``rank 13`` or ``ranks 4-7,9``; empty where no rank is named."""
    ranks = {culprit["rank"] for culprit in culprits if culprit["rank"] is not None}
    if not ranks:
        return ""
    return f"rank{'s' if len(ranks) > 1 else ''} {fold_numbers(ranks)}"


def named(verdict: Mapping[str, Any] | None) -> frozenset[int]:
    """Ranks of the culprits, else of the suspects."""
    people = (verdict["culprits"] or verdict["suspects"]) if verdict else ()
    return frozenset(person["rank"] for person in people if person["rank"] is not None)


def hosts_of(culprits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sorted names that are host names."""
    return sorted({culprit["host"] for culprit in culprits if culprit["host"] and HOST.match(culprit["host"])})


def writer(fact: Mapping[str, Any], *, by_hand: bool) -> str:
    """Who wrote the line, as far as that is known. ``by_hand``: in logs without a job, which may be copies."""
    if fact["trust"] == "root":
        return "written by root"
    form = _FORMS.get(fact["producer"]) if by_hand else None
    if form:
        return f"given by hand, in {form} form"
    return "given by hand" if by_hand and fact["rank"] is None else "written by the job"


def counted(number: int, noun: str) -> str:
    """``1 more fact``, ``2 more facts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
