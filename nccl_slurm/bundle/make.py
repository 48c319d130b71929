"""A report and all that is known around it → the files of a bundle, as many as fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_slurm import __version__
from nccl_slurm.bundle.doctor import gaps as gaps_of_doctor
from nccl_slurm.bundle.doctor import is_of, misfit
from nccl_slurm.bundle.index import index, support_case
from nccl_slurm.bundle.part import Part, checksums, fitting, json_part, text_part
from nccl_slurm.bundle.records import Kept, of_records
from nccl_slurm.bundle.support import Answer, Case, answers, variables
from nccl_slurm.doctor.aws.place import Place
from nccl_slurm.model import Gap
from nccl_slurm.report.escalation import Escalation, of_findings, of_report
from nccl_slurm.report.quote import without_secrets
from nccl_slurm.report.text import gap_lines, render

__all__ = ["BYTES_DEFAULT", "Bundle", "Material", "make"]

BYTES_DEFAULT = 100_000_000
_SUMMARY_LINES = 4


@dataclass(frozen=True)
class Material:
    """``parts``: texts of Slurm, extracts. ``gaps``: of what was looked for beyond the report's own gaps."""

    report: Mapping[str, Any]
    place: Place
    kept: Kept = field(default_factory=Kept)
    doctor: Mapping[str, Any] | None = None
    parts: Sequence[Part] = ()
    gaps: Sequence[Gap] = ()


@dataclass(frozen=True)
class Bundle:
    """``left``: files for which there was no room."""

    subject: str
    parts: Sequence[Part]
    left: Sequence[Part]
    gaps: Sequence[Gap]

    @property
    def size(self) -> int:
        return sum(len(part.data) for part in self.parts)


def make(material: Material, most: int = BYTES_DEFAULT) -> Bundle:
    """At most ``most`` bytes, but for the report, the support case, the index and the checksums, which always stay."""
    report = without_secrets(material.report)
    case = Case(report, material.place, material.kept.records, material.doctor)
    told, found = answers(case), variables(case)
    everything = [
        support_case(told, of_report(report) or _by_doctor(material.doctor, report["job"])),
        text_part("report.txt", render(report, ranks=True), "the report for people", 0),
        json_part("report.json", report, "the report with all its facts", 0, clean=True),
        json_part("case.json", _facts(case, told, found), "window, versions, variables, instances: for programs", 0),
        *_environment(found),
        *_doctor(material.doctor),
        *material.parts,
        *of_records(material.kept),
    ]
    kept, left = fitting(everything, most)
    asked = gaps_of_doctor(material.doctor, report["job"]) if material.doctor is not None else ()
    gaps = [*material.gaps, *asked, *_more(material.kept), *(Gap("report", line) for line in gap_lines(report))]
    subject = _subject(report)
    head = render(report).splitlines()[:_SUMMARY_LINES]
    page = index(subject, [line for line in head if line], kept, left, gaps)
    return Bundle(subject, [*kept, page, checksums([*kept, page])], left, gaps)


@dataclass(frozen=True)
class _Told:
    """A finding as the doctor's JSON has it."""

    check: str
    status: str
    values: Mapping[str, str]


def _by_doctor(doctor: Mapping[str, Any] | None, job: Mapping[str, Any]) -> Escalation | None:
    """That nothing is wrong tells something where a doctor says so that looked at all, for this very job."""
    if doctor is None or misfit(doctor, job):
        return None
    whole = is_of(doctor, job) and doctor.get("narrowed") == [] and not doctor["left_out"]
    found = [_Told(row["check"], row["status"], row["values"]) for row in doctor["findings"]]
    return of_findings(found, job["id"], whole=whole)


def _more(kept: Kept) -> list[Gap]:
    if not kept.more:
        return []
    return [Gap("node records", f"those of {kept.more} more nodes are not in it; report.json has their facts")]


def _subject(report: Mapping[str, Any]) -> str:
    job = report["job"]
    return f"job {job['id']} run {job['run']}" if job["id"] else "logs without a job"


def _environment(found: Mapping[tuple[str, str], str]) -> Iterable[Part]:
    lines = [f"{name}={value}{who}" for (name, value), who in found.items()]
    what = "NCCL, FI and TORCH variables that lines of the logs tell"
    return [text_part("environment.txt", "\n".join(lines), what, 1)] if lines else ()


def _doctor(doctor: Mapping[str, Any] | None) -> Iterable[Part]:
    return () if doctor is None else [json_part("doctor.json", doctor, "findings of nccl-slurm doctor", 1)]


def _facts(case: Case, told: Sequence[Answer], found: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    job, place = case.report["job"], case.place
    return {
        "schema": "nccl-slurm/bundle/1",
        "nccl_slurm": __version__,
        "job": {"id": job["id"], "run": job["run"], "start": job["start"], "end": job["end"]},
        "hyperpod": {
            "cluster": place.cluster,
            "arn": place.arn,
            "region": place.region,
            "told_by": list(place.sources),
        },
        "answers": {answer.question.id: list(answer.lines) or None for answer in told},
        "variables": [{"name": name, "value": value} for name, value in found],
        "versions": case.report["versions"],
        "nodes": {node: record["machine"] for node, record in sorted(case.records.items())},
    }
