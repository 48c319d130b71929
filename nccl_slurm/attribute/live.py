"""Evidence of a job that still runs, and what stood still in it → verdict. Pure.

Nothing has ended yet, so what ranks print is no proof: an exception may be caught, a wait may be over in a moment.
Order alone names a rank: counts of collectives that were seen to rise, and then stood still. A silent rank among others
that go on is a suspect; where all are silent nobody is. The verdict asks for a look at most, and the end's verdict
takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccl_slurm.attribute import progress, reading
from nccl_slurm.attribute.blame import attribute
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Evidence, Fact, Inference, Recommendation, Verdict, numbered

__all__ = ["ALL_SILENT", "Quiet", "capped", "judge", "look_only"]

#: The rule that says that nothing at all is written any more.
ALL_SILENT = "live.all-silent"
#: Actions that go further than a look.
_BEYOND_A_LOOK = ("reboot", "replace")
_CALM = ("unknown", "benign", "benign-teardown", "preempt-cancel")


@dataclass(frozen=True)
class Quiet:
    """What looks at a running job showed, in seconds.

    ``ranks``: those with a rhythm that are silent for far longer than the job's longest pause → how long. ``moving``:
    ranks with a rhythm that are not. ``longest_s``: the longest pause before, None where no rhythm was seen.
    ``still_s``: so long no count of collectives changed; None where they rise or are not known. ``rose``: all of them
    were seen to rise before. ``all_s``: so long nothing at all changed, where that is far longer than any pause before.
    ``written``: something changes, in a rhythm that was seen. ``ras_s``: ids of facts of RAS ranks whose count stood
    still → how long.
    """

    ranks: Mapping[int, float] = field(default_factory=dict)
    moving: frozenset[int] = frozenset()
    longest_s: float | None = None
    still_s: float | None = None
    rose: bool = False
    all_s: float | None = None
    written: bool = False
    ras_s: Mapping[str, float] = field(default_factory=dict)


def judge(evidence: Evidence, quiet: Quiet) -> tuple[Evidence, Verdict]:
    """With the evidence to which our own observation is added, as a fact."""
    evidence = _with_still(evidence, quiet)
    scene = Scene(evidence)
    findings = [found for found in (rule(scene, quiet) for rule in _RULES) if found]
    if findings:
        return evidence, _verdict(findings[0], findings)
    return evidence, _so_far(evidence, quiet) or _verdict(_all_silent(quiet) or _calm(scene, quiet), ())


def capped(verdict: Verdict) -> Verdict:
    """Asks for a look at most."""
    return replace(verdict, action="investigate") if verdict.action in _BEYOND_A_LOOK else verdict


def look_only(item: Recommendation) -> Recommendation:
    """The same, without what goes further than a look."""
    if item.action not in _BEYOND_A_LOOK:
        return item
    why = f"The job still runs: a look first. {item.why}"
    return replace(item, action="investigate", rule=f"live.{item.rule}", why=why, commands=())


def _with_still(evidence: Evidence, quiet: Quiet) -> Evidence:
    if quiet.still_s is None or not quiet.rose:
        return evidence
    text = f"all counts of collectives had been seen to rise, and then stood still for {quiet.still_s:.0f} s"
    made = Fact(reading.STILL, text, "nccl-slurm", "context", "job", data={"seconds": round(quiet.still_s, 1)})
    return replace(evidence, facts=(*evidence.facts, *numbered([made], len(evidence.facts) + 1)))


def _behind(scene: Scene, quiet: Quiet) -> Finding | None:
    """Counts that move may have been read at different moments."""
    found = progress.find(scene) if quiet.still_s is not None else None
    if found is None:
        return None
    still = scene.sorts.of_kind(reading.STILL)
    summary = f"{found.summary} No count changed for {quiet.still_s:.0f} s."
    return replace(found, rule=f"live.{found.rule}", summary=summary, facts=(*found.facts, *cite(still)))


def _by_ras(scene: Scene, quiet: Quiet) -> Finding | None:
    facts = [fact for fact in scene.sorts.of_kind(*reading.RAS_RANK) if fact.id in quiet.ras_s]
    behind = [fact for fact in facts if (reading.number(fact.data, "lead") or 0) < 0]
    if not behind:
        return None
    ranks = {fact.id: _rank_of(scene, fact) for fact in behind}
    people = [
        scene.culprit(rank, _ras_words(fact), cite([fact]))
        for fact in behind
        if (rank := ranks[fact.id]) is not None and scene.known(rank)
    ]
    seconds = min(quiet.ras_s[fact.id] for fact in behind)
    return Finding(
        rule="live.ras-behind",
        failure_class="collective-hang-unattributed",
        confidence="possible",
        summary=f"By NCCL's RAS {len(behind)} ranks are short of what most have launched, for {seconds:.0f} s now.",
        facts=cite(behind),
    ).naming(people, proven=False)


def _rank_of(scene: Scene, fact: Fact) -> int | None:
    """RAS numbers ranks in their communicator; the pid tells which of the job's it is, where no other has it."""
    pid = reading.number(fact.data, "pid")
    found = [row.rank for row in scene.table.values() if pid is not None and row.pid == pid]
    return found[0] if len(found) == 1 else None


def _ras_words(fact: Fact) -> str:
    data = fact.data
    short = -(reading.number(data, "lead") or 0)
    op = str(data.get("op", "operation"))[:40]
    return f"RAS: rank {data.get('group_rank')} of its communicator is {short} {op} short of most"


def _silent(scene: Scene, quiet: Quiet) -> Finding | None:
    """Where more are silent than go on, the few that print may be the odd ones (a barrier's timer, a logger)."""
    ranks = sorted(rank for rank in quiet.ranks if scene.known(rank))
    if not ranks or len(ranks) >= len(quiet.moving):
        return None
    why = "silent while the others go on"
    words = {rank: f"{why}: nothing for {quiet.ranks[rank]:.0f} s, {_before(quiet)}" for rank in ranks}
    last = {rank: cite(scene.said.get(rank, [])[-1:]) for rank in ranks}
    return Finding(
        rule="live.silent",
        failure_class="straggler",
        confidence="possible",
        summary=f"{rank_list(ranks).capitalize()} {'is' if len(ranks) == 1 else 'are'} {why} "
        f"({len(quiet.moving)} others; {_before(quiet)}).",
        facts=[fact for rank in ranks for fact in last[rank]],
    ).naming([scene.culprit(rank, words[rank], last[rank]) for rank in ranks], proven=False)


_RULES: Sequence[Callable[[Scene, Quiet], Finding | None]] = (_behind, _by_ras, _silent)


def _all_silent(quiet: Quiet) -> Finding | None:
    if quiet.all_s is None:
        return None
    text = f"{_nothing_for(quiet)} Nothing tells whom the ranks wait for."
    return Finding(ALL_SILENT, "collective-hang-unattributed", "possible", text)


def _nothing_for(quiet: Quiet) -> str:
    return f"Nothing was written for {quiet.all_s or 0.0:.0f} s; {_before(quiet)}."


def _before(quiet: Quiet) -> str:
    return f"the longest pause before was {quiet.longest_s or 0.0:.0f} s"


def _so_far(evidence: Evidence, quiet: Quiet) -> Verdict | None:
    """What the ranks' words would say of a job that had ended; in one that runs nobody is proven by it. Counts that
    move are left out."""
    facts = [fact for fact in evidence.facts if not _is_count(fact)]
    found = attribute(replace(evidence, facts=facts, ranks=[replace(rank, progress={}) for rank in evidence.ranks]))
    if found.failure_class in _CALM:
        return None
    first = () if quiet.all_s is None else (Inference(_nothing_for(quiet), ALL_SILENT),)
    how = "The job runs on" if quiet.all_s is None else f"{_nothing_for(quiet)} Before that"
    return replace(
        capped(found),
        confidence="possible",
        summary=f"{how}: {found.summary}",
        culprits=(),
        suspects=found.culprits or found.suspects,
        inferences=(*first, *found.inferences),
    )


def _is_count(fact: Fact) -> bool:
    return fact.kind == reading.DUMPED or fact.kind.startswith("nccl.ras-")


def _calm(scene: Scene, quiet: Quiet) -> Finding:
    """Not observed is not healthy: only ranks that were seen to go on do."""
    moving, expected = len(quiet.moving), len(scene.expected)
    if moving and moving == expected and scene.world is not None:
        text = f"All {moving} ranks go on."
        return Finding("live.moving", "benign", "possible", text, action="none")
    if not scene.seen:
        text = "No rank was seen: nothing that one left could be read, or none has left anything."
        return Finding("live.unknown", "unknown", "possible", text, action="unknown")
    of = f" of {scene.world}" if scene.world is not None else ""
    text = f"{len(scene.seen)}{of} ranks were seen, {moving} of them to go on; nothing tells that one is behind."
    text += " The job's files are written to." if quiet.written else ""
    return Finding("live.unknown", "unknown", "possible", text, action="unknown")


def _verdict(main: Finding, findings: Sequence[Finding]) -> Verdict:
    steps = [Inference(found.summary, found.rule, tuple(found.facts)) for found in findings or [main]]
    return capped(
        Verdict(
            failure_class=main.failure_class,
            confidence="proven" if main.culprits else "likely" if main.confidence == "proven" else main.confidence,
            summary=main.summary,
            action=main.next_step() if main.action else "investigate",
            culprits=tuple(main.culprits),
            suspects=() if main.culprits else tuple(main.suspects),
            inferences=tuple(steps),
        )
    )
