"""What HyperPod's own health checks found in the window, by CloudWatch Logs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.aws.findings import AGENT, DEEP_CHECKS, Detection, Result
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import Word, load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, told_of, unread
from nccl_slurm.doctor.check import Finding, NotObserved, Proof

__all__ = ["DEEP_CHECK", "HEALTH_AGENT"]

_AGENT, _DEEP = "aws.health-agent", "aws.deep-check"
_PROOFS_MAX = 10
_UNKNOWN = Word("other", "WARN", "P1", "a reason that this version does not know", "")
_FAULT = Word("faulty", "FAIL", "P0", "a deep health check found a fault", "")


def _agent(aws: Aws) -> Iterator[Finding]:
    listed = aws.detections()
    by_word: dict[tuple[str, str, str | None], tuple[Word, list[Detection]]] = {}
    for one in listed.items:
        row = load().of_agent(f"{one.reason or ''} {one.text}") or _UNKNOWN
        by_word.setdefault((row.id, one.reason or "", one.instance), (row, []))[1].append(one)
    for (_, reason, _), (row, found) in by_word.items():
        yield _detected(aws, reason, row, found)
    yield from unread(_AGENT, "the agent's log", listed.cut)
    if listed.items or listed.cut:
        return
    yield from _living(aws)


def _living(aws: Aws) -> Iterator[Finding]:
    """Silence of an agent that writes tells something, and only of its own node."""
    alive = aws.agents_wrote()
    if not alive:
        raise NotObserved(f"the health agent wrote nothing {_window(aws)}: whether it runs is not known")
    if not aws.nodes:
        text = f"health agents of {len(alive)} instances wrote their log, and detected nothing, {_window(aws)}"
        yield Finding(_AGENT, "PASS", text)
        return
    known = aws.map().instance
    names = [node.name for node in aws.nodes]
    wrote = [name for name in names if name in known and aws.agent_wrote(known[name])]
    silent = [name for name in names if name in known and name not in wrote]
    unmapped = [name for name in names if name not in known]
    if wrote:
        yield Finding(_AGENT, "PASS", f"the health agent wrote, and detected nothing, {_window(aws)}", nodes=wrote)
    if silent:
        text = f"the health agent wrote nothing {_window(aws)}: whether it runs is not known"
        yield Finding(_AGENT, "UNKNOWN", text, nodes=silent)
    if unmapped:
        yield Finding(_AGENT, "UNKNOWN", "the instance is not known, and so neither its health agent", nodes=unmapped)


def _detected(aws: Aws, reason: str, row: Word, found: Sequence[Detection]) -> Finding:
    """Of one reason and one instance."""
    proofs = tuple(_proof(aws, AGENT, one) for one in found[:_PROOFS_MAX])
    finding = told_of(aws, _AGENT, row, f"{reason or 'a detection'}: {row.means}", found[0].instance)
    values = {**finding.values, "reason": reason, "log_group": aws.log_group()}
    return replace(finding, since=_first(found), proofs=proofs, values=values)


def _deep(aws: Aws) -> Iterator[Finding]:
    """They run when an instance is made, or when somebody asks for one: most windows have none."""
    listed = aws.results()
    bad: dict[str | None, list[Result]] = {}
    for one in listed.items:
        if one.bad:
            bad.setdefault(one.instance, []).append(one)
    for instance, results in bad.items():
        passed = _passed(listed.items, instance, results)
        yield _found(aws, results, passed)
    unclear = [one for one in listed.items if one.unclear and one.instance not in bad]
    if unclear:
        proofs = tuple(_proof(aws, DEEP_CHECKS, one) for one in unclear[:_PROOFS_MAX])
        yield Finding(_DEEP, "WARN", "deep health checks wrote errors that name no fault", "P2", proofs=proofs)
    yield from unread(_DEEP, "the log of deep health checks", listed.cut)
    if bad or unclear or listed.cut:
        return
    if listed.items:
        yield Finding(_DEEP, "PASS", f"{len(listed.items)} lines of deep health checks {_window(aws)}, none of a fault")
    else:
        yield Finding(_DEEP, "NOT-APPLICABLE", f"no deep health check wrote anything {_window(aws)}")


def _passed(every: Sequence[Result], instance: str | None, bad: Sequence[Result]) -> Result | None:
    """A check of the same instance that went well as a whole, after the last fault."""
    last = max((one.time for one in bad if one.time is not None), default=None)
    later = [one for one in every if one.passed and one.instance == instance and one.time is not None]
    return next((one for one in later if instance and last is not None and (one.time or 0.0) > last), None)


def _found(aws: Aws, results: Sequence[Result], passed: Result | None) -> Finding:
    """Of one instance."""
    row, text = _FAULT, _FAULT.means
    told = [*results[:_PROOFS_MAX], *([passed] if passed else [])]
    if passed is not None:
        row, text = replace(row, status="WARN", priority="P2"), f"{text}, and a later one passed"
    finding = told_of(aws, _DEEP, row, text, results[0].instance)
    proofs = tuple(_proof(aws, DEEP_CHECKS, one) for one in told)
    values = {**finding.values, "log_group": aws.log_group()}
    return replace(finding, since=_first(results), proofs=proofs, values=values)


def _first(found: Sequence[Detection | Result]) -> float | None:
    return min((one.time for one in found if one.time is not None), default=None)


def _proof(aws: Aws, stream: str, one: Detection | Result) -> Proof:
    line = f"{rfc3339(one.time) or 'no time'} {one.instance or 'instance not told'}: {one.text}"
    group = aws.log_group()
    return call(aws, "logs", "filter-log-events", line, "--log-group-name", group, "--log-stream-name-prefix", stream)


def _window(aws: Aws) -> str:
    return f"from {rfc3339(aws.since)} to {rfc3339(aws.until)}"


HEALTH_AGENT = AwsCheck(_AGENT, "detections of HyperPod's health agent inside the window", _agent)
DEEP_CHECK = AwsCheck(_DEEP, "results of deep health checks inside the window", _deep)
