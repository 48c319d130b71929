"""Which process failed first: exceptions, device errors, signals, exit codes. Consequences are never causes.

A rank that waited, lost a peer or was ended by its agent reacted to someone else. torchrun's own "root cause" is no
evidence: it compares whole seconds, judges one node and puts a victim with an error file before a killed rank. What
counts here is who has a cause of its own at all, and whether everyone else's end is explained as a consequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.attribute import endings, progress, reading
from nccl_slurm.attribute.clocks import Moment
from nccl_slurm.attribute.death import CLASSES_OF_A_RANK, Death, attempt_of, deaths, may_abort
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.outlived import noticed, was_alive
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Fact

__all__ = ["MARGIN_S", "WITNESSES_MIN", "find"]

#: Two failures closer than this are not ordered by clocks: torch's and Slurm's tables have whole seconds.
MARGIN_S = 2.0
#: Ranks whose own words must tell of the loss.
WITNESSES_MIN = 2
#: Of so many others one may have left no word of its own, where that many others explained themselves: of a thousand
#: records some get lost. In a small job the rank that nobody heard of is as likely to have failed first.
DARK_SHARE, CROWD_MIN = 4, 16


def find(scene: Scene) -> Finding | None:
    everyone = deaths(scene)
    strong = _first_attempts(_without_waiting(scene, [death for death in everyone if not death.weak]))
    own = _signal_before_exceptions(strong) or _bare_exits(scene, everyone)
    if not own:
        return None
    first = own[0] if len(own) == 1 else _earliest(scene, own)
    if first is None:
        return _several(scene, own)
    unordered = len(own) < len(strong)
    proven = not unordered and _excludes_others(scene, first, everyone)
    return Finding(
        rule="first-failure.only" if len(own) == 1 else "first-failure.earliest",
        failure_class=first.failure_class,
        confidence="proven" if proven else "likely",
        summary=f"Rank {first.rank} failed first: {first.why}.",
        facts=cite([*first.facts, *_alibis(scene, first.rank)]),
        action=first.action,
        time=first.time,
        uncertainty_s=first.uncertainty_s,
    ).naming([scene.culprit(first.rank, first.why, cite(first.facts))], proven=proven)


def _without_waiting(scene: Scene, own: list[Death]) -> list[Death]:
    """Programs word a lost or late peer as they like: a rank that its own count shows waiting did not fail first."""
    if not any(death.failure_class == "rank-exception" for death in own):
        return own
    waiting = progress.waiting_for_others(scene)
    return [death for death in own if death.failure_class != "rank-exception" or death.rank not in waiting]


def _several(scene: Scene, own: Sequence[Death]) -> Finding:
    classes = {death.failure_class for death in own}
    one = classes.pop() if len(classes) == 1 else "rank-exception"
    suspects = [scene.culprit(death.rank, death.why, cite(death.facts)) for death in own]
    actions = {death.action for death in own}
    return Finding(
        rule="first-failure.several",
        failure_class=one,
        confidence="likely",
        summary=f"{rank_list([d.rank for d in own]).capitalize()} failed by themselves; no clock tells who was first.",
        facts=cite(fact for death in own for fact in death.facts[:2]),
        action=actions.pop() if len(actions) == 1 else None,
    ).naming(suspects, proven=False)


def _earliest(scene: Scene, own: Sequence[Death]) -> Death | None:
    """The one that is earlier than all others by more than the clocks may err; None where that can't be told."""
    timed = [(_moment(scene, death), death) for death in own if death.time is not None]
    if len(timed) < len(own):
        return None
    when, first = min(timed, key=lambda pair: scene.clocks.corrected(pair[0]))
    others = [(moment, death) for moment, death in timed if death is not first]
    sure = all(scene.clocks.earlier(when, moment, MARGIN_S) and not death.late for moment, death in others)
    return first if sure else None


def _moment(scene: Scene, death: Death) -> Moment:
    zoned = next((reading.is_zoned(fact) for fact in death.facts if fact.time == death.time), None)
    return Moment(death.time or 0.0, death.uncertainty_s, scene.host(death.rank), zoned)


def _signal_before_exceptions(own: list[Death]) -> list[Death]:
    """Of one killed process and other ranks' exceptions the kill is the likely start: programs wrap lost peers."""
    signals = [death for death in own if death.failure_class == "process-signal" and not death.weak]
    if len(signals) != 1 or any(d.failure_class != "rank-exception" for d in own if d is not signals[0]):
        return own
    return signals


def _bare_exits(scene: Scene, everyone: Sequence[Death]) -> list[Death]:
    """Exit codes without a word. Where a line without a rank tells of a reaction, a plain 1 may be its exit code; also
    that of a rank whose own file is lost, where others tell in theirs that they timed out."""
    hinted = scene.sorts.where(lambda fact: fact.role == "consequence" and fact.hint is not None)
    reactions = any(fact.rank is None and not reading.tells_only_an_exit(fact) for fact in hinted)
    weak = [death for death in everyone if death.weak]
    kinds = scene.own_files(scene.consequences) if weak else None
    return [
        death
        for death in weak
        if death.intrinsic or not (reactions or (scene.timed_out and not scene.would_be_heard(death.rank, kinds)))
    ]


def _first_attempts(own: Sequence[Death]) -> list[Death]:
    """Without those of a later attempt. Numbers compare inside one agent's folder only: nodes count restarts apart."""
    earliest: dict[str, int] = {}
    for death in own:
        folder, attempt = attempt_of(death.facts[0]) if death.facts else ("", 0)
        earliest[folder] = min(attempt, earliest.get(folder, attempt))
    return [d for d in own if not d.facts or attempt_of(d.facts[0])[1] == earliest[attempt_of(d.facts[0])[0]]]


def _excludes_others(scene: Scene, first: Death, everyone: Sequence[Death]) -> bool:
    """Every other rank's end is a consequence, a later failure or a good exit; or the cause can't come from others."""
    later = {death.rank for death in everyone if not death.weak}
    others = scene.expected - {first.rank}
    explained = all(rank in later or _is_explained(scene, rank) for rank in others)
    if was_alive(scene, first.rank) and not scene.reacted:
        return False
    if first.intrinsic and not first.weak:
        killed = first.failure_class == "process-signal"
        return not (killed and endings.may_be_caused_by_end(scene, first.facts))
    if scene.ending.was and not noticed(scene, first.rank):
        return False
    if first.weak:
        explained = explained and (_someone_said_why(scene) or _left_on_purpose(scene, first))
    elif not explained:
        explained = _but_for_few(scene, first, [rank for rank in others if rank not in later])
    proven = explained and bool(others) and not _may_be_a_reaction(scene, first)
    return proven and not endings.may_be_caused_by_end(scene, first.facts)


def _may_be_a_reaction(scene: Scene, first: Death) -> bool:
    """What a program made of a wait looks like a failure of its own where the words of the wait are lost.

    ``raise … from None`` hides them. A type that wraps anything tells no more where no other rank says that it lost
    this one: an agent may have ended them all before they told that they waited too, or that they failed alike.
    What says that something did not come in time, or names another rank, does so too, unless every other rank tells in
    its own words that it waited or lost somebody: then this one alone did not wait with them.
    SIGABRT says that somebody gave up, the C++ runtime too in a process that leaves while its threads run, and gloo of
    data that does not fit: the words of that come before it, so that they must be there to be read.
    """
    others = scene.expected - {first.rank}
    alone = not any(scene.spoke(rank) for rank in others)
    if first.failure_class == "process-signal":
        lost = {rank: facts for rank, facts in scene.lost.items() if rank in others}
        heard = bool(lost) and scene.would_be_heard(first.rank, scene.own_files(lost))
        return scene.exits.get(first.rank) == -6 and not heard
    words = [fact for fact in first.facts if not reading.tells_only_an_exit(fact)] or _nameless_words(scene)
    if any(map(_may_have_waited, words)) and not all(_told_a_reaction(scene, rank) for rank in others):
        return True
    return any(reading.hides_context(fact) or (alone and _may_be_of_all(fact)) for fact in words)


def _told_a_reaction(scene: Scene, rank: int) -> bool:
    return any(not reading.tells_only_an_exit(fact) for fact in scene.consequences.get(rank, ()))


def _may_have_waited(fact: Fact) -> bool:
    return fact.hint == "rank-exception" and reading.speaks_of_a_peer(fact)


def _may_be_of_all(fact: Fact) -> bool:
    return reading.wraps_anything(fact) or reading.meets_all(fact)


def _but_for_few(scene: Scene, first: Death, others: Sequence[int]) -> bool:
    """It alone told a failure of its own, and few others told nothing at all, while the rest explained itself.

    All ranks run one program: were the failure how that program words a lost peer, others would have worded it so too.
    A peer that was lost before it, as far as clocks tell, speaks against it.
    """
    open_ones = [rank for rank in others if not _is_explained(scene, rank)]
    if any(scene.spoke(rank) for rank in open_ones):
        return False
    dark = min(len(open_ones), _unheard_at_most(scene, first))
    few = len(others) - dark >= max(CROWD_MIN, DARK_SHARE * dark)
    return few and not _lost_before(scene, first)


def _unheard_at_most(scene: Scene, first: Death) -> int:
    """Of the others: all, but for those that told how they reacted in lines without a rank (torch before 2.2), each in
    the file that its agent kept for it. Nothing is counted where one of these files may be that of ``first``, or where
    such lines tell another failure."""
    others = scene.expected - {first.rank}
    row = scene.table.get(first.rank)
    reactions = (fact for fact in scene.sorts.having("local_rank") if _is_nameless_reaction(fact))
    told = {(scene.node(fact.host), reading.number(fact.data, "local_rank")) for fact in reactions}
    known = row is not None and row.local_rank is not None and scene.host(first.rank) is not None
    if not known or row is None or (scene.host(first.rank), row.local_rank) in told or _nameless_words(scene):
        return len(others)
    return max(0, len(others) - len(told))


def _is_nameless_reaction(fact: Fact) -> bool:
    reacted = fact.role == "consequence" and (reading.is_wait(fact) or reading.is_peer_lost(fact))
    return reacted and fact.rank is None and fact.host is not None and not reading.number(fact.data, "attempt")


def _lost_before(scene: Scene, first: Death) -> bool:
    if first.time is None:
        return False
    losses = (
        loss for rank, facts in scene.lost.items() if rank != first.rank for loss in facts if loss.time is not None
    )
    margin = MARGIN_S + first.uncertainty_s
    return any((loss.time or 0.0) + (loss.uncertainty_s or 0.0) + margin < first.time for loss in losses)


def _left_on_purpose(scene: Scene, first: Death) -> bool:
    """An exit code other than Python's 1 for an uncaught exception, while others lost it and nobody timed out."""
    return first.intrinsic and not scene.timed_out and len(set(scene.lost) - {first.rank}) >= WITNESSES_MIN


def _someone_said_why(scene: Scene) -> bool:
    """Some line without a rank tells a failure of its own kind, and none speaks of waiting or of a lost peer.

    A bare exit code may be that of a victim whose words were not captured.
    """
    if scene.reacted:
        return False
    return bool(_nameless_words(scene))


def _nameless_words(scene: Scene) -> list[Fact]:
    """Causes of one rank whose rank is not told."""
    causes = scene.sorts.where(lambda fact: fact.role == "cause" and fact.hint in CLASSES_OF_A_RANK)
    return [fact for fact in causes if fact.rank is None and not reading.tells_only_an_exit(fact)]


def _is_explained(scene: Scene, rank: int) -> bool:
    if rank in scene.consequences or rank in scene.ended_by_agent:
        return True
    code = scene.exits.get(rank)
    return code == 0 or (code == -6 and may_abort(scene, rank))


def _alibis(scene: Scene, culprit: int) -> list[Fact]:
    """One consequence a rank, for the reader to check."""
    return [facts[0] for rank, facts in sorted(scene.consequences.items()) if rank != culprit]
