"""Evidence → verdict. Pure: no clock, no file, no Slurm.

Each rule looks at the evidence on its own; here their findings are put in order. A finding that proves a culprit goes
before one that does not; among equals the order of `RULES` counts, which follows who can know best: the machine itself,
then what all ranks agree on, then what single ranks say, then silence. What is not chosen stays as an inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nccl_slurm.attribute import (
    endings,
    first_failure,
    hang,
    machine,
    mismatch,
    missing,
    notes,
    pace,
    progress,
    shared_cause,
)
from nccl_slurm.attribute.clocks import Moment
from nccl_slurm.attribute.finding import Finding
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.model import Culprit, Evidence, Verdict

__all__ = ["LEFT", "RULES", "attribute"]

_Rule = Callable[[Scene], Finding | None]

#: In this order.
RULES: tuple[_Rule, ...] = (
    machine.hardware,
    machine.node_failed,
    machine.out_of_memory,
    machine.pasted,
    pace.stopped,
    endings.launch,
    mismatch.find,
    first_failure.find,
    progress.find,
    missing.find,
    shared_cause.find,
    shared_cause.anonymous,
    endings.find,
)
#: What is left where no rule found anything; the first one only.
LEFT: tuple[_Rule, ...] = (
    hang.hung,
    hang.flushed,
    hang.bootstrapped,
    hang.lost_peers,
    machine.hints,
    machine.app_faults,
    machine.printed,
    missing.stalled,
    hang.reacted,
    hang.counted,
    hang.unexplained_error,
    pace.left,
    machine.signs,
    hang.taken_down,
    hang.exited,
    hang.calm,
)
_FOLLOW_AN_END = frozenset(
    {
        "hang.lost-peers",
        "hang.flushed",
        "hang.consequences",
        "hang.taken-down",
        "missing.stalled",
        "calm.completed",
        "calm.noise",
    }
)
#: These add nothing where another finding was chosen.
_LESS = ("hang", "calm", "shared-cause.no-rank")
#: Actions that send a person to a machine.
_ABOUT_A_NODE = ("investigate", "reboot", "replace", "network")
_NOTHING = Finding("nothing", "unknown", "possible", "Nothing that was observed explains how the run ended.")


def attribute(evidence: Evidence, sorts: Sorts | None = None) -> Verdict:
    """Never raises on any evidence; names only ranks and hosts of the run. ``sorts``: of its facts, where they are at
    hand."""
    scene = Scene(evidence, sorts)
    findings = [found for found in (rule(scene) for rule in RULES) if found]
    left = next((found for found in (rule(scene) for rule in LEFT) if found), None)
    findings += [left] if left else []
    main = _chosen(scene, findings)
    others = [found for found in findings if found.rule != main.rule and not found.rule.startswith(_LESS)]
    others = [found for found in others if not _says_the_opposite(found, main)]
    main = _of_several_runs(main) if evidence.mixed else main
    main = _of_a_group(main) if scene.ranks_are_of_a_group else main
    main = replace(main, culprits=_where(scene, main, main.culprits), suspects=_where(scene, main, main.suspects))
    culprits = tuple(_allowed(scene, main.culprits))
    verdict = Verdict(
        failure_class=main.failure_class,
        confidence=_confidence(main, culprits, mixed=bool(evidence.mixed)),
        summary=main.summary,
        action=main.next_step(),
        culprits=culprits,
        suspects=() if culprits else tuple(_allowed(scene, main.suspects)),
        inferences=tuple(found.inference() for found in (main, *others) if found.rule != _NOTHING.rule),
    )
    return replace(verdict, inferences=(*verdict.inferences, *notes.notes(scene, verdict)))


def _chosen(scene: Scene, findings: Sequence[Finding]) -> Finding:
    proven = [found for found in findings if found.culprits]
    if proven:
        return _joined(_first_in_time(scene, proven), findings)
    if endings.was_ended(scene):
        return _before_the_end(scene, findings)
    return _most_telling(findings)


def _first_in_time(scene: Scene, proven: Sequence[Finding]) -> Finding:
    """The first rule that proves someone, unless another proven finding is earlier beyond what clocks may err."""
    main = proven[0]
    for other in proven[1:]:
        if other.rule.startswith(("progress", "missing")):
            continue
        when, before = _moment(scene, main), _moment(scene, other)
        if when is None or before is None:
            continue
        if scene.clocks.earlier(before, when, first_failure.MARGIN_S):
            main = other
    return main


def _says_the_opposite(found: Finding, main: Finding) -> bool:
    """Lines that the verdict calls the cause are not events that need not end a job."""
    return found.rule == "machine.hints" and set(found.facts) <= set(main.facts)


def _moment(scene: Scene, found: Finding) -> Moment | None:
    """By the clock of the line that told its time."""
    cited = set(found.facts)
    lines = (fact for fact in scene.facts if fact.id in cited and fact.time == found.time)
    whose = next((scene.moment(fact) for fact in lines), None)
    host, zoned = (whose.host, whose.zoned) if whose else (None, None)
    return None if found.time is None else Moment(found.time, found.uncertainty_s, host, zoned)


def _joined(main: Finding, findings: Sequence[Finding]) -> Finding:
    """The rank that is proven behind and the one that has a failure of its own are the same: the failure says why."""
    if main.failure_class != "collective-missing-rank":
        return main
    for found in findings:
        if found.rule.startswith("first-failure") and found.named() == main.named() and found.suspects:
            return replace(
                found,
                rule=f"{found.rule}+{main.rule}",
                confidence="proven",
                culprits=found.suspects,
                suspects=(),
                facts=(*found.facts, *main.facts),
            )
    return main


def _most_telling(findings: Sequence[Finding]) -> Finding:
    """Nobody is proven. Exceptions that nobody vouches for, and mere silence, come after causes that ranks share."""
    shared = any(f.rule.startswith("shared-cause") and f.failure_class != "rank-exception" for f in findings)
    ordered = [found for found in findings if not (shared and (_is_plain_exception(found) or _is_guess(found)))]
    return ordered[0] if ordered else _NOTHING


def _is_guess(found: Finding) -> bool:
    return found.rule.startswith("missing.silent") and found.confidence == "possible"


def _is_plain_exception(found: Finding) -> bool:
    return found.rule.startswith("first-failure") and found.failure_class == "rank-exception"


def _before_the_end(scene: Scene, findings: Sequence[Finding]) -> Finding:
    """The run was ended from outside: only what is known to come before that counts.

    Lost peers don't: ranks of a cancelled job lose one another within milliseconds of the line that says so.
    """
    end = next((found for found in findings if found.rule == "slurm.ended"), _NOTHING)
    for found in findings:
        printed = found.rule == "machine.unvouched" and scene.job is not None  # the end needs no other explanation
        if found is end or printed or found.rule in _FOLLOW_AN_END:
            continue
        cited = {fact for suspect in found.suspects for fact in suspect.evidence} or set(found.facts)
        facts = [fact for fact in scene.facts if fact.id in cited]
        if facts and not endings.may_be_caused_by_end(scene, facts):
            return found
    return end


def _of_several_runs(main: Finding) -> Finding:
    """Rank 3 of one run is not rank 3 of the other: who waited for whom is not known."""
    return main.naming([*main.culprits, *main.suspects], proven=False)


def _of_a_group(main: Finding) -> Finding:
    """Rank 3 of a group is not rank 3 of the job: what is known of machines stays."""
    of_machine = main.rule.startswith("machine")
    culprits, suspects = (
        tuple(replace(one, rank=None) for one in named if of_machine) for named in (main.culprits, main.suspects)
    )
    text = (
        main.summary if of_machine else f"{main.summary} Ranks are counted in a group of NCCL's here, not in the job."
    )
    return replace(main, summary=text, culprits=culprits, suspects=suspects)


def _confidence(main: Finding, culprits: Sequence[Culprit], *, mixed: bool) -> str:
    if culprits or (main.rule == "slurm.ended" and not mixed):
        return "proven"
    return "likely" if main.confidence == "proven" else main.confidence


def _where(scene: Scene, main: Finding, named: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """Where the node is what wants looking at, a rank's host is told only if it is more than the job's own claim."""
    if main.next_step() not in _ABOUT_A_NODE:
        return tuple(named)
    return tuple(
        replace(one, host=None) if one.rank is not None and not scene.was_on(one.host, one.rank, one.evidence) else one
        for one in named
    )


def _allowed(scene: Scene, named: Sequence[Culprit]) -> list[Culprit]:
    """The last guard: a rank that the run does not have, a host outside its nodes, or what is none, is never named."""
    kept = []
    for culprit in named:
        rank = culprit.rank if culprit.rank is not None and scene.known(culprit.rank) else None
        host = scene.node(culprit.host) if scene.is_machine(culprit.host) else None
        if rank is not None or (host is not None and culprit.rank is None):
            kept.append(replace(culprit, rank=rank, host=host))
    return kept
