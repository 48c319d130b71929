"""Whether anything is left to try on the site itself; if not, the bundle is the next step. Pure, by rows of
``data/support.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from nccl_slurm.tables import packaged

__all__ = ["Escalation", "Found", "Question", "as_json", "of_findings", "of_report", "questions"]

_JOB_ID = re.compile(r"\d{1,10}(?:[_+]\d{1,10})?\Z")
#: Verdicts on runs in which nothing failed, or which somebody ended.
_NO_FAILURE = ("benign", "benign-teardown", "preempt-cancel")


@dataclass(frozen=True)
class Escalation:
    """``rule``: the row's id. ``command``: what a person may run next; it sends nothing."""

    rule: str
    why: str
    command: str


@dataclass(frozen=True)
class Question:
    """What is asked of a case; ``look``: where it is told, if nothing here knows it."""

    id: str
    ask: str
    look: str


class Found(Protocol):
    """A finding, as `doctor.check.Finding` is one."""

    @property
    def check(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def values(self) -> Mapping[str, str]: ...


def questions() -> tuple[Question, ...]:
    return tuple(Question(row["id"], row["ask"], row["look"]) for row in _table()["ask"])


def of_report(report: Mapping[str, Any]) -> Escalation | None:
    """None where something is left to try, nothing failed, or the last word is not spoken."""
    verdict = report["verdict"]
    if report["status"] != "final" or verdict is None or verdict["class"] in _NO_FAILURE:
        return None
    row = next((row for row in _rows("report") if _holds(row, report)), None)
    return None if row is None else Escalation(row["id"], row["says"], _command(report["job"]))


def of_findings(findings: Iterable[Found], job: str | None = None, *, whole: bool = False) -> Escalation | None:
    """``job``: the one that was looked at, for the command; None: nobody asked about one, so none is known to fail.
    ``whole``: nothing of what doctor can look at for it was left out."""
    found = list(findings)
    row = next((row for row in _rows("doctor") if _found(row, found, whole=whole and job is not None)), None)
    where = job if job and _JOB_ID.match(job) else "JOBID"
    return None if row is None else Escalation(row["id"], row["says"], f"nccl-slurm bundle {where} --with-doctor")


def as_json(escalation: Escalation | None) -> dict[str, str] | None:
    return None if escalation is None else dict(vars(escalation))


def _holds(row: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    verdict = report["verdict"]
    if verdict["class"] not in row.get("class", [verdict["class"]]):
        return False
    if "named" in row and row["named"] != bool(verdict["culprits"] or verdict["suspects"]):
        return False
    if len(report["gaps"]) > row.get("gaps", len(report["gaps"])):
        return False
    if not {"rule", "action", "step", "why"} & set(row):
        return True
    return any(_fits(row, item) for item in report["recommendations"])


def _fits(row: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    return (
        item["rule"] in row.get("rule", [item["rule"]])
        and item["action"] in row.get("action", [item["action"]])
        and item["step"] >= row.get("step", 0)
        and any(part in item["why"] for part in row.get("why", [""]))
    )


def _found(row: Mapping[str, Any], findings: Sequence[Found], *, whole: bool) -> bool:
    if row.get("clean"):
        return bool(whole and findings) and all(one.status in ("PASS", "NOT-APPLICABLE") for one in findings)
    return any(
        one.check == row["check"]
        and one.status in row["status"]
        and all(word in one.values.values() for word in row.get("values", ()))
        for one in findings
    )


def _command(job: Mapping[str, Any]) -> str:
    number = next((str(one) for one in (job["id"], job["raw_id"]) if one and _JOB_ID.match(str(one))), None)
    if number is None:
        return "nccl-slurm bundle --logs PATH"
    return f"nccl-slurm bundle {number}" + (f" --run {int(job['run'])}" if job["run"] is not None else "")


def _rows(of: str) -> list[Mapping[str, Any]]:
    return [row for row in _table()["escalation"] if row["of"] == of]


@cache
def _table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return packaged("support.toml")
