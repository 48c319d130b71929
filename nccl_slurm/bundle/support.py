"""What AWS Support asks of a HyperPod case, filled in as far as it is known. Pure; the questions are rows of
``data/support.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_slurm.doctor.aws.place import Place
from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.info.setting import settings
from nccl_slurm.model import Fact
from nccl_slurm.recommend.site import INSTANCE
from nccl_slurm.report.escalation import Question, questions

__all__ = ["Answer", "Case", "answers", "variables"]

ERRORS_MAX = 20
_ERRORS = ("cause", "consequence")
_LINE_MAX = 500
#: As NCCL, aws-ofi-nccl and torch print a setting; the facts of a report have no more than the line.
_SET = re.compile(
    r"\b((?:NCCL|FI|OFI_NCCL|TORCH)_[A-Z0-9_]{1,60})"
    r"(?: set by environment to |(?: environment variable)? to |(?: \([^)]{0,120}\))?: |=)([^,\s]{1,100})"
)


@dataclass(frozen=True)
class Case:
    """``report``: without secrets. ``records`` by node, empty where they were not read. ``doctor``: its JSON.

    ``place``: what HyperPod's files and the settings tell. ``slurm``: whether this is a job of Slurm's.
    """

    report: Mapping[str, Any]
    place: Place
    records: Mapping[str, Mapping[str, Any]]
    doctor: Mapping[str, Any] | None = None

    @property
    def slurm(self) -> bool:
        return self.report["job"]["id"] is not None


@dataclass(frozen=True)
class Answer:
    """``lines`` empty: not known; ``question.look`` tells where it is to be found."""

    question: Question
    lines: Sequence[str]


def answers(case: Case) -> list[Answer]:
    return [Answer(question, [line for line in _LINES[question.id](case) if line]) for question in questions()]


def _cluster(case: Case) -> Iterator[str]:
    yield case.place.cluster or ""


def _arn(case: Case) -> Iterator[str]:
    yield case.place.arn or ""


def _region(case: Case) -> Iterator[str]:
    yield case.place.region or ""


def _orchestrator(case: Case) -> Iterator[str]:
    """A job with an id is Slurm's: nothing else gave it one."""
    yield "Slurm" if case.slurm else ""


def _job(case: Case) -> Iterator[str]:
    job = case.report["job"]
    if job["id"]:
        ended = f"state {job['state'] or 'not known'}, exit {job['exit'] or 'not known'}"
        yield f"job {job['id']} run {job['run']}, {ended}"
        yield f"{len(job['nodes'])} nodes, {job['gpus'] if job['gpus'] is not None else 'not known how many'} GPUs"


def _window(case: Case) -> Iterator[str]:
    """Of the job, and of the evidence inside it."""
    job = case.report["job"]
    if job["start"] or job["end"]:
        yield f"job: {job['start'] or 'not known'} to {job['end'] or 'not known'} (UTC)"
    facts = [fact for fact in case.report["facts"] if fact["time"] and fact["role"] in _ERRORS]
    if facts:
        times = sorted(fact["time"] for fact in facts)
        yield f"errors: {times[0]} to {times[-1]} (UTC)"


def _errors(case: Case) -> Iterator[str]:
    """Word by word, each once: what the verdict rests on first, causes, then what followed from them. What a dump of
    the flight recorder says is no message that anything printed."""
    verdict = case.report["verdict"] or {}
    people = [*verdict.get("culprits", ()), *verdict.get("suspects", ())]
    cited = {one for person in people for one in person["evidence"]}
    printed = [fact for fact in case.report["facts"] if not fact["kind"].startswith("flight-recorder.")]
    facts = [fact for fact in printed if fact["role"] in _ERRORS or fact["id"] in cited]
    facts.sort(key=lambda fact: (fact["id"] not in cited, fact["role"] != "cause", fact["trust"] != "root"))
    yield from list(dict.fromkeys(fact["text"][:_LINE_MAX] for fact in facts))[:ERRORS_MAX]


def _instances(case: Case) -> Iterator[str]:
    """Of the nodes that the verdict or a recommendation names first, then of all others."""
    known = _identities(case)
    verdict = case.report["verdict"] or {}
    named = [person["host"] for key in ("culprits", "suspects") for person in verdict.get(key, ())]
    named += [item["target"] for item in case.report["recommendations"]]
    first = [name for name in dict.fromkeys(named) if name]
    for name in first:
        yield f"{name} (named): {known.get(name, 'instance id not known')}"
    yield from (f"{name}: {known[name]}" for name in sorted(known) if name not in first)
    rest = [node["name"] for node in case.report["nodes"] if node["name"] not in known and node["name"] not in first]
    if rest and (known or first):
        yield f"{fold(rest)}: instance ids not known"


def _identities(case: Case) -> dict[str, str]:
    """As the nodes' own records told them, at the time of the run."""
    told = {node["name"]: node["identity"] for node in case.report["nodes"]}
    told |= {name: record["machine"]["identity"] for name, record in case.records.items()}
    return {name: identity for name, identity in told.items() if identity and INSTANCE.match(identity)}


def _variables(case: Case) -> Iterator[str]:
    for (name, value), who in variables(case).items():
        yield f"{name}={value}{who}"


def variables(case: Case) -> dict[tuple[str, str], str]:
    """(name, value) → of whom, in words; by the lines of logs that say so."""
    found: dict[tuple[str, str], set[int]] = {}
    for name, value, rank in _settings(case):
        found.setdefault((name, value), set()).update(() if rank is None else (rank,))
    more = [name for name, _ in found]
    return {
        key: f" (ranks {fold_numbers(ranks)})" if ranks and more.count(key[0]) > 1 else ""
        for key, ranks in sorted(found.items())
    }


def _settings(case: Case) -> Iterator[tuple[str, str, int | None]]:
    for record in case.records.values():
        facts = [Fact.from_json(fact) for fact in record["facts"]]
        yield from ((name, value, fact.rank) for name, value, fact in settings(facts))
    for fact in case.report["facts"]:
        if fact["kind"] in _KINDS:
            yield from ((name, value.strip("'\"."), fact["rank"]) for name, value in _SET.findall(fact["text"]))


_KINDS = ("nccl.env", "ofi.setting", "framework.setting", "torch.environment")


def _versions(case: Case) -> Iterator[str]:
    for component, versions in (case.report["versions"] or {}).items():
        yield f"{component} {', '.join(versions)}"
    yield from _of_records(case.records.values())


def _of_records(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    kernels = sorted({record["machine"]["kernel"] for record in records if record["machine"]["kernel"]})
    if kernels:
        yield f"kernel {', '.join(kernels)}"


def _tried(case: Case) -> Iterator[str]:
    """The ladder's own words: what the history of the machine has."""
    for item in case.report["recommendations"]:
        target = f" {item['target']}" if item["target"] else ""
        yield f"{item['action']}{target} (step {item['step']}): {item['why'][:_LINE_MAX]}"


def _findings(case: Case) -> Iterator[str]:
    for finding in (case.doctor or {}).get("findings") or ():
        if isinstance(finding, Mapping) and finding.get("status") in ("FAIL", "WARN"):
            priority = finding.get("priority") or ""
            yield f"{finding.get('check')} {finding.get('status')} {priority}: {str(finding.get('text'))[:_LINE_MAX]}"


_LINES = {
    "cluster": _cluster,
    "arn": _arn,
    "region": _region,
    "orchestrator": _orchestrator,
    "job": _job,
    "window": _window,
    "errors": _errors,
    "instances": _instances,
    "variables": _variables,
    "versions": _versions,
    "tried": _tried,
    "findings": _findings,
}
