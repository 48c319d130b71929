"""Ranks that are known by their absence: no timeout of their own while all others wait, or named missing by the others,
or gone with exit 0 while all others still needed them.

Silence alone proves nothing: survivors are often ended by their agent before they print, a file may not have been
captured. A silent rank is proven only where the world size is known, every other rank says that it waits, and the
silent one's own end (told of a timeout while idle, ended by its agent without a word, or finished with exit 0) shows
that it was not in the collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.death import CLASSES_OF_A_RANK, deaths
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["find", "stalled"]

#: Witnesses without whom one timeout could as well be the network between two ranks.
WITNESSES_MIN = 2
#: An agent ends its workers a moment after the first one gave up. Of many ranks one may have entered the collective
#: that moment later than the others, and then its silence shows nothing, unless SIGTERM did not end it.
HURRY_MAX = 16
_CLASS = "collective-missing-rank"


def find(scene: Scene) -> Finding | None:
    rules: tuple[Callable[[Scene], Finding | None], ...] = (_analyser, _store_key, _barrier, _silent, _left)
    return next((found for found in (rule(scene) for rule in rules) if found), None)


def stalled(scene: Scene) -> Finding | None:
    """Horovod's coordinator names who has not submitted what the others wait for: late ones, or those that wait at
    another tensor. All its lines name the same few ranks, or nobody is told."""
    facts = scene.sorts.of_kind(*reading.STALLS)
    told = {ranks for fact in facts if (ranks := tuple(sorted({*reading.numbers(fact.data.get("missing"))})))}
    if len(told) != 1:
        return None
    missing = list(told.pop())
    few = 2 * len(missing) <= scene.world if scene.world else len(missing) == 1
    if not few or not all(scene.known(rank) for rank in missing):
        return None
    return _by_name(scene, "missing.stalled", missing, facts, proven=False, who="Horovod's coordinator")


def _silent(scene: Scene) -> Finding | None:
    """Others waited until their timeout; one or a few ranks of a known world never said so."""
    world = scene.world or scene.listed_by_agents
    if not scene.waits or world is None:
        return None
    waiting = set(scene.waits) | set(scene.lost) | scene.stricken
    silent = sorted(rank for rank in scene.expected - waiting if not _failed_otherwise(scene, rank))
    if not silent or _are_too_many(scene, len(silent), len(waiting)) or _unread(scene, silent):
        return None
    alone = len(silent) == 1
    why = _how_it_ended(scene, silent[0]) if alone else "no timeout of their own while others waited"
    proven = alone and scene.world is not None and _is_clear(scene, silent[0], waiting)
    waits = [facts[0] for _, facts in sorted(scene.waits.items())]
    return Finding(
        rule="missing.silent",
        failure_class=_CLASS,
        confidence="proven" if proven else "likely" if alone else "possible",
        summary=f"{len(waiting)} of {world} ranks waited in a collective; {rank_list(silent)} did not: {why}.",
        facts=cite([*_last_words(scene, silent), *waits]),
        time=min((fact.time for fact in waits if fact.time is not None), default=None),
    ).naming([_absent(scene, rank, why, waits) for rank in silent], proven=proven)


def _are_too_many(scene: Scene, silent: int, waiting: int) -> bool:
    """More than wait; or as many, and nothing tells how any rank ended: then half of the lines may as well be lost."""
    return silent > waiting or (silent == waiting and not (scene.exits or scene.ended_by_agent))


def _unread(scene: Scene, silent: Iterable[int]) -> bool:
    """No file came in which any of them could have spoken, and nobody saw how they ended: nothing was observed of them,
    and that is a gap. Files that were given by hand may have been chosen."""
    kinds = scene.files_of_waits if scene.job is not None else None
    return not any(_would_be_heard(scene, rank, kinds) for rank in silent)


def _is_clear(scene: Scene, silent: int, waiting: set[int]) -> bool:
    enough = len(waiting) >= WITNESSES_MIN and _same_seq(scene)
    heard = _would_be_heard(scene, silent, scene.files_of_waits)
    return enough and _stood_aside(scene, silent) and heard


def _failed_otherwise(scene: Scene, rank: int) -> bool:
    """It told a failure that all ranks may share or that is its machine's: it was not silent."""
    said = (fact for fact in scene.said.get(rank, ()) if fact.role == "cause" and fact.hint is not None)
    return any(fact.hint not in CLASSES_OF_A_RANK for fact in said)


def _would_be_heard(scene: Scene, rank: int, kinds: frozenset[str] | None) -> bool:
    """A rank that others saw end with exit 0 needs no file: whoever waits in vain does not end so."""
    if any(reading.told_idle(fact) for fact in scene.said.get(rank, ())) or scene.exits.get(rank) == 0:
        return True
    return scene.would_be_heard(rank, kinds)


def _left(scene: Scene) -> Finding | None:
    """One rank had ended with exit 0, all that others say is that they lost somebody.

    Whoever lost a peer first lost one that went without a word of its own, and there is no other such rank.
    """
    gone = sorted(rank for rank in scene.expected if scene.exits.get(rank) == 0)
    others = scene.expected - set(gone)
    if len(gone) != 1 or scene.world is None or scene.timed_out or scene.spoke(gone[0]):
        return None
    lost = [facts[0] for rank, facts in sorted(scene.lost.items()) if rank in others]
    reacted = all(rank in scene.lost or rank in scene.ended_by_agent for rank in others)
    if len(lost) < WITNESSES_MIN or not reacted or deaths(scene):
        return None
    why = "it had finished with exit 0, and the others lost their connections to it"
    return Finding(
        rule="missing.left",
        failure_class=_CLASS,
        confidence="proven",
        summary=f"Rank {gone[0]} finished with exit 0 while the other {len(others)} ranks went on: they lost it.",
        facts=cite([*_last_words(scene, gone), *lost]),
    ).naming([_absent(scene, gone[0], why, lost)], proven=True)


def _absent(scene: Scene, rank: int, why: str, waits: Sequence[Fact]) -> Culprit:
    return scene.culprit(rank, why, cite([*_last_words(scene, [rank]), *waits]))


def _last_words(scene: Scene, ranks: Iterable[int]) -> list[Fact]:
    return [fact for rank in ranks for fact in scene.said.get(rank, [])[-2:]]


def _stood_aside(scene: Scene, rank: int) -> bool:
    if any(reading.told_idle(fact) for fact in scene.said.get(rank, ())):
        return True
    if scene.exits.get(rank) == 0:
        return True
    return rank in scene.ended_by_agent and (len(scene.expected) <= HURRY_MAX or scene.exits.get(rank) == -9)


def _how_it_ended(scene: Scene, rank: int) -> str:
    if any(reading.told_idle(fact) for fact in scene.said.get(rank, ())):
        return "it was told of the timeout and had nothing in flight itself"
    if scene.exits.get(rank) == 0:
        return "it had finished with exit 0"
    if rank in scene.ended_by_agent:
        return "its launcher ended it, without a timeout of its own"
    return "nothing else was observed of it"


def _same_seq(scene: Scene) -> bool:
    """All timeouts that tell a sequence number and a process group tell the same one within that group."""
    seqs: dict[object, set[int]] = defaultdict(set)
    for facts in scene.waits.values():
        for fact in facts:
            seq = reading.number(fact.data, "seq")
            if seq is not None:
                seqs[fact.data.get("pg")].add(seq)
    return all(len(values) == 1 for values in seqs.values())


def _analyser(scene: Scene) -> Finding | None:
    """PyTorch's own analyser of flight recorder dumps names the missing ranks of a collective.

    It knows the group's members. We may not: then one missing rank is believed, several could be the majority.
    """
    for fact in scene.sorts.of_kind(*reading.ANALYSER_MISSING):
        ranks = reading.numbers(fact.data.get("missing"))
        few = 2 * len(ranks) <= scene.world if scene.world else len(ranks) == 1
        if ranks and few and all(scene.known(rank) for rank in ranks):
            return _by_name(scene, "missing.analyser", list(ranks), [fact], proven=True, who="torchfrtrace")
    return None


def _store_key(scene: Scene) -> Finding | None:
    """Set-up of a process group waits for a key that the missing rank would have written: its number ends the key.

    The keys are asked for in the order of ranks, so that the world may be larger than what was seen: this rank is
    missing all the same, if it is known to have lived.
    """
    votes: dict[int, list[Fact]] = defaultdict(list)
    for fact in scene.sorts.of_kind(*reading.STORE_WAITS):
        missing = reading.missing_in_store(fact)
        if missing is not None and scene.known(missing):
            votes[missing].append(fact)
    if len(votes) != 1:
        return None
    rank, facts = next(iter(votes.items()))
    witnesses = {fact.rank for fact in facts if fact.rank is not None} - {rank}
    others = scene.expected - {rank}
    lived = scene.world is not None or rank in scene.ended_by_agent
    proven = lived and witnesses == others and len(witnesses) >= WITNESSES_MIN
    return _by_name(scene, "missing.store-key", [rank], facts, proven=proven, who="the store")


def _barrier(scene: Scene) -> Finding | None:
    """``monitoredBarrier`` names who did not arrive: they may wait elsewhere for the rank that reports them."""
    facts = scene.sorts.of_kind(*reading.BARRIERS)
    named = {rank for fact in facts for rank in reading.numbers(fact.data.get("missing"))}
    absent = sorted(rank for rank in named if scene.known(rank))
    if not absent or len(absent) != len(named):
        return None
    heard = [*facts, *scene.sorts.of_kind(*reading.BARRIER_REACHED)]
    reached = {reading.number(f.data, "group_rank") if f.rank is None else f.rank for f in heard}
    others = scene.expected - set(absent)
    silent = not any(scene.spoke(rank) for rank in absent)
    proven = scene.world is not None and silent and others <= reached and len(others) >= WITNESSES_MIN
    return _by_name(scene, "missing.barrier", absent, facts, proven=proven, who="monitoredBarrier")


def _by_name(scene: Scene, rule: str, ranks: list[int], facts: Iterable[Fact], *, proven: bool, who: str) -> Finding:
    cited = cite(facts)
    why = f"named missing by {who}"
    return Finding(
        rule=rule,
        failure_class=_CLASS,
        confidence="proven" if proven else "likely",
        summary=f"{who} names {rank_list(ranks)} missing{'' if proven else '; not proven to be the first'}.",
        facts=cited,
    ).naming([scene.culprit(rank, why, cited) for rank in ranks], proven=proven)
