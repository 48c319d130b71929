"""The job's output, by all rows that are known: what its lines say together, and which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nccl_slurm.attribute import live
from nccl_slurm.attribute.blame import attribute
from nccl_slurm.doctor.check import Finding, NotObserved
from nccl_slurm.doctor.checks.job.asked import SHOWN, JobCheck, lines_of
from nccl_slurm.doctor.observation import JobObserved
from nccl_slurm.hosts import HOST
from nccl_slurm.model import Evidence, Fact, Gap, Parsed, Verdict, numbered

__all__ = ["CHECKS", "ID"]

ID = "job.output"
#: Classes in which nothing has gone wrong.
_FINE = frozenset({"benign", "benign-teardown"})
_ENDED_BY_OTHERS = frozenset({"preempt-cancel"})
#: Lines that decide nothing by themselves, and are no good sign. An exception's text is worth more than a warning.
_RAISED = frozenset({"torch.nccl-error", "nccl.ras-error"})
_WARNED = frozenset(
    {
        "nccl.warn",
        "nccl.ib-stall",
        "nccl.ib-device-failed",
        "nccl.ib-post",
        "nccl.fabric-hint",
        "nccl.bootstrap-root",
        "framework.slow-ranks",
    }
)
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def judge(observed: JobObserved) -> Iterator[Finding]:
    parsed = observed.parsed()
    if not parsed.bytes_read:
        raise NotObserved(_why_nothing(parsed.gaps))
    yield _found(observed, parsed)
    if parsed.gaps:
        told = "; ".join(f"{gap.source}: {gap.why}" for gap in parsed.gaps[:3])
        yield Finding(ID, "UNKNOWN", f"not all of the output could be read: {told}"[:400])


def _found(observed: JobObserved, parsed: Parsed) -> Finding:
    facts = numbered(parsed.facts)
    telling = [fact for fact in facts if fact.role in ("cause", "consequence")]
    if not telling:
        return _of_signs(parsed, facts)
    verdict = _verdict(observed, Evidence(None, (), facts, parsed.ranks, parsed.gaps, parsed.world_size))
    if verdict.failure_class in _FINE:
        return Finding(ID, "PASS", verdict.summary, proofs=lines_of(telling[:1]))
    return _told(observed, verdict, facts, telling)


def _of_signs(parsed: Parsed, facts: Sequence[Fact]) -> Finding:
    raised = [fact for fact in facts if fact.kind in _RAISED]
    warned = [fact for fact in facts if fact.kind in _WARNED]
    if raised:
        text = f"{len(raised)} lines tell of errors of NCCL, and none of their cause"
        return Finding(ID, "WARN", text, "P1", proofs=lines_of(raised[:SHOWN]))
    if warned:
        text = f"{len(warned)} warnings, and no line of a failure"
        return Finding(ID, "WARN", text, "P2", proofs=lines_of(warned[:SHOWN]))
    size = f"{parsed.bytes_read / (1 << 20):.1f} MiB"
    return Finding(ID, "PASS", f"{size} of output hold no line of a failure that is known")


def _verdict(observed: JobObserved, evidence: Evidence) -> Verdict:
    """In a job that runs an exception may have been caught, so what a rank printed proves nothing."""
    return live.judge(evidence, live.Quiet())[1] if _runs(observed) else attribute(evidence)


def _runs(observed: JobObserved) -> bool:
    return observed.live is not None and observed.live.state in _RUNNING


def _told(observed: JobObserved, verdict: Verdict, facts: Sequence[Fact], telling: Sequence[Fact]) -> Finding:
    cited = _cited(verdict)
    known = verdict.failure_class != "unknown"
    first = (
        [fact for fact in facts if fact.id in cited] or [fact for fact in telling if fact.role == "cause"] or telling
    )
    hosts = sorted({one.host for one in verdict.culprits if one.host and HOST.match(one.host)})
    runs, of_others = _runs(observed), verdict.failure_class in _ENDED_BY_OTHERS
    return Finding(
        ID,
        "FAIL" if known and not of_others and not runs else "WARN",
        f"{verdict.failure_class} ({verdict.confidence}): {verdict.summary}" if known else _unexplained(telling),
        "P2" if of_others else "P0" if known and not runs else "P1",
        nodes=[host for host in hosts if host in observed.fleet.nodes or host in observed.fleet.silent],
        since=min((fact.time for fact in first if fact.time is not None), default=None),
        proofs=lines_of(first[:SHOWN]),
        values={"class": verdict.failure_class},
    )


def _unexplained(telling: Sequence[Fact]) -> str:
    kinds = list(dict.fromkeys(fact.kind for fact in telling))
    return f"{len(telling)} lines tell of failures and none of their cause: {', '.join(kinds[:5])}"


def _cited(verdict: Verdict) -> set[str]:
    named = (*verdict.culprits, *verdict.suspects)
    cited = {fact for one in named for fact in one.evidence}
    return cited or {fact for step in verdict.inferences[:1] for fact in step.facts}


def _why_nothing(gaps: Sequence[Gap]) -> str:
    why = next((f"{gap.source}: {gap.why}" for gap in gaps), "its files are empty")
    return f"the job's output says nothing: {why}"


CHECKS: Iterable[JobCheck] = (JobCheck(ID, "The job's output tells no failure", (), judge),)
