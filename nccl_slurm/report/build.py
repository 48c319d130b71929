"""The report object: one JSON value of schema ``nccl-slurm/report/1`` with every key present, null where unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nccl_slurm.clock import rfc3339
from nccl_slurm.info import timeout
from nccl_slurm.info.nic import nics
from nccl_slurm.info.path import paths
from nccl_slurm.info.teller import told
from nccl_slurm.info.version import versions
from nccl_slurm.model import Culprit, Evidence, Fact, Gap, Job, NodeView, Rank, Recommendation, Verdict
from nccl_slurm.report.escalation import as_json, of_report

__all__ = ["FACTS_MAX", "build"]

#: Facts in one report. What the verdict rests on always fits; a run of 1,000 nodes has many more.
FACTS_MAX = 200
#: Ranks without any trace are listed one by one up to here; past it the gap alone says so (a job can print any size).
SILENT_MAX = 1024
#: Evidence behind one timeout value.
TIMEOUT_FACTS = 3
#: Slurm stores whole seconds.
SLURM_UNCERTAINTY_S = 1.0
YEAR_10000 = 253_402_300_800

_HOST_MAX = 255
_DUMPED = "flight-recorder.status"
_GPU_MAX = 40
_NOT_OBSERVED: dict[str, Any] = {
    "exit": None,
    "first": None,
    "last": None,
    "last_line": None,
    "progress": {},
    "uncertainty_s": None,
}


def build(
    evidence: Evidence, verdict: Verdict | None, recommendations: Sequence[Recommendation], status: str
) -> dict[str, Any]:
    """``status`` is pending, settling, live or final. ``verdict`` None: nothing was judged yet."""
    timeouts = _timeouts(evidence.facts)
    adapters = nics(evidence.facts)
    off = {node.name: _off_by(node) for node in evidence.nodes}
    chosen = _chosen(evidence.facts, _cited(verdict, recommendations) | _ids_of(timeouts))
    report: dict[str, Any] = {
        "schema": "nccl-slurm/report/1",
        "status": status,
        "job": _job(evidence.job),
        "nodes": [_node(node) for node in _nodes(evidence)],
        "verdict": None if verdict is None else _verdict(verdict),
        "facts": [_fact(fact, off) for fact in chosen],
        "inferences": [
            {"text": step.text, "rule": step.rule, "from": list(step.facts)}
            for step in (verdict.inferences if verdict else ())
        ],
        "gaps": [{"source": gap.source, "why": gap.why} for gap in _gaps(evidence, len(chosen))],
        "recommendations": [_recommendation(item) for item in recommendations],
        "ranks": [
            _rank(rank, off, adapters.get(rank.rank, ())) for rank in sorted(evidence.ranks, key=lambda rank: rank.rank)
        ]
        + _silent(evidence),
        "transport": _transport(evidence.facts),
        "versions": _versions(evidence.facts),
        "timeouts": timeouts or None,
    }
    return {**report, "escalation": as_json(of_report(report))}


def _job(job: Job | None) -> dict[str, Any]:
    words = ("id", "raw_id", "cluster", "run", "user", "name", "partition", "state", "exit", "derived_exit", "gpus")
    view: dict[str, Any] = {key: getattr(job, key, None) for key in words}
    for key in ("submit", "start", "end"):
        view[key] = _time(getattr(job, key, None))
    view["uncertainty_s"] = SLURM_UNCERTAINTY_S if view["start"] or view["end"] else None
    view["nodes"] = list(job.nodes) if job else []
    view["steps"] = [
        {"id": s.id, "name": s.name, "state": s.state, "exit": f"{s.exit}:{s.signal}", "nodes": list(s.nodes)}
        for s in (job.steps if job else ())
    ]
    return view


def _nodes(evidence: Evidence) -> list[NodeView]:
    """Nodes that were looked at, then those of the run that nobody looked at."""
    seen = {node.name for node in evidence.nodes}
    listed = evidence.job.nodes if evidence.job else ()
    return [*evidence.nodes, *(NodeView(name) for name in listed if name not in seen)]


def _node(node: NodeView) -> dict[str, Any]:
    keys = ("name", "identity", "role", "state_at_start", "state_at_end", "reason", "record")
    return {key: getattr(node, key) for key in keys}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "class": verdict.failure_class,
        "confidence": verdict.confidence,
        "determinable": verdict.determinable,
        "summary": verdict.summary,
        "action": verdict.action,
        "culprits": [_culprit(culprit) for culprit in verdict.culprits],
        "suspects": [_culprit(culprit) for culprit in verdict.suspects],
    }


def _culprit(culprit: Culprit) -> dict[str, Any]:
    return {
        "rank": culprit.rank,
        "host": culprit.host[:_HOST_MAX] if culprit.host else None,
        "gpu": culprit.gpu[:_GPU_MAX] if culprit.gpu else None,
        "why": culprit.why,
        "evidence": list(culprit.evidence),
    }


def _recommendation(item: Recommendation) -> dict[str, Any]:
    return {
        "target": item.target,
        "action": item.action,
        "rule": item.rule,
        "step": item.step,
        "why": item.why,
        "evidence": list(item.evidence),
        "commands": list(item.commands),
        "run_by": item.run_by,
    }


def _off_by(node: NodeView) -> float:
    """Seconds by which stamps of this node may be off, as far as that was measured."""
    return abs(node.clock_offset_s or 0.0) + (node.clock_error_s or 0.0)


def _uncertain(of: Fact | Rank, off: Mapping[str, float]) -> float | None:
    return None if of.uncertainty_s is None else of.uncertainty_s + off.get(of.host or "", 0.0)


def _rank(rank: Rank, off: Mapping[str, float], adapters: Sequence[str]) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "local_rank": rank.local_rank,
        "gpu": rank.gpu,
        "nics": list(adapters) or None,
        "exit": rank.exit,
        "first": _time(rank.first),
        "last": _time(rank.last),
        "uncertainty_s": _uncertain(rank, off),
        "last_line": rank.last_line,
        "progress": {group: dict(counts) for group, counts in rank.progress.items()},
    }


def _silent(evidence: Evidence) -> list[dict[str, Any]]:
    """Rows of ranks that must exist (world size, or below a rank that was seen) and left no trace."""
    seen = {rank.rank for rank in evidence.ranks}
    size = max(evidence.world_size or 0, max(seen, default=-1) + 1)
    if size - len(seen) > SILENT_MAX:
        return []
    missing = (number for number in range(size) if number not in seen)
    return [{"rank": n, "host": None, "local_rank": None, "gpu": None, "nics": None, **_NOT_OBSERVED} for n in missing]


#: Whose time a stamp is, as `parse.stamp` tells it; a job's record may say anything.
CLOCKS = ("utc", "local", "local, year guessed")


def _fact(fact: Fact, off: Mapping[str, float]) -> dict[str, Any]:
    keys = (
        "id",
        "text",
        "file",
        "line",
        "offset",
        "rank",
        "host",
        "uncertainty_s",
        "producer",
        "trust",
        "kind",
        "role",
    )
    return {
        **{key: getattr(fact, key) for key in keys},
        "uncertainty_s": _uncertain(fact, off),
        "time": _time(fact.time),
        "clock": clock if (clock := fact.data.get("clock")) in CLOCKS else None,
    }


def _gaps(evidence: Evidence, shown: int) -> list[Gap]:
    gaps = list(evidence.gaps)
    silent = (evidence.world_size or 0) - len({rank.rank for rank in evidence.ranks})
    if silent > 0:
        gaps.append(Gap("ranks", f"{silent} of {evidence.world_size} ranks left no line, dump or exit status"))
    gaps += _partly(evidence)
    if shown < len(evidence.facts):
        gaps.append(Gap("report", f"{len(evidence.facts) - shown} of {len(evidence.facts)} facts are not printed here"))
    return gaps


def _partly(evidence: Evidence) -> Iterator[Gap]:
    """Ranks that lack what others left: each kind is evidence of its own."""
    left = {
        "line": {rank.rank for rank in evidence.ranks if rank.last_line},
        "flight recorder dump": {f.rank for f in evidence.facts if f.rank is not None and f.kind == _DUMPED},
        "exit status": {rank.rank for rank in evidence.ranks if rank.exit is not None},
    }
    known = {rank.rank for rank in evidence.ranks}
    for what, ranks in left.items():
        lacking = known - ranks
        if ranks and lacking:
            yield Gap(
                what, f"none of {told(lacking)}, while {len(ranks)} other{'s' if len(ranks) > 1 else ''} left one"
            )


def _cited(verdict: Verdict | None, recommendations: Iterable[Recommendation]) -> set[str]:
    cited = {fact for item in recommendations for fact in item.evidence}
    if verdict is not None:
        for culprit in (*verdict.culprits, *verdict.suspects):
            cited.update(culprit.evidence)
        for step in verdict.inferences:
            cited.update(step.facts)
    return cited


def _time(seconds: float | None) -> str | None:
    """None too where a damaged stamp lies outside the years 1970-9999."""
    return rfc3339(seconds) if seconds is not None and 0 <= seconds < YEAR_10000 else None


def _ids_of(timeouts: Iterable[Mapping[str, Any]]) -> set[str]:
    return {fact for timeout in timeouts for fact in timeout["from"]}


def _chosen(facts: Sequence[Fact], cited: set[str]) -> list[Fact]:
    """What was cited, then causes, then the rest, up to `FACTS_MAX`; in their own order."""
    order = {"cause": 1, "consequence": 2, "context": 3, "benign": 4}
    ranked = sorted(facts, key=lambda fact: 0 if fact.id in cited else order.get(fact.role, 5))
    room = max(FACTS_MAX, sum(fact.id in cited for fact in facts))
    kept = {id(fact) for fact in ranked[:room]}
    return [fact for fact in facts if id(fact) in kept]


def _transport(facts: Iterable[Fact]) -> dict[str, list[int]] | None:
    """Network that NCCL chose (``IB``) and paths of channels (``NET/IB/GDRDMA``, ``P2P/IPC``) → ranks that said so."""
    found: dict[str, set[int]] = {}
    for name, fact in paths(facts):
        found.setdefault(name, set()).update(_rank_of(fact))
    return {name: sorted(ranks) for name, ranks in sorted(found.items())} or None


def _versions(facts: Iterable[Fact]) -> dict[str, dict[str, list[int]]] | None:
    """Component → version → ranks that said so; an empty list where the line tells no rank."""
    found: dict[str, dict[str, set[int]]] = {}
    for component, version, fact in versions(facts):
        found.setdefault(component, {}).setdefault(version, set()).update(_rank_of(fact))
    return {c: {v: sorted(ranks) for v, ranks in sorted(vs.items())} for c, vs in sorted(found.items())} or None


def _timeouts(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """The clocks that were found, by layer from the bottom up: how long each waits before it gives up."""
    return [
        {"layer": one.layer.name, "seconds": one.seconds, "from": [fact.id for fact in one.facts[:TIMEOUT_FACTS]]}
        for one in timeout.found(timeout.telling(facts))
    ]


def _rank_of(fact: Fact) -> tuple[int, ...]:
    return () if fact.rank is None else (fact.rank,)
