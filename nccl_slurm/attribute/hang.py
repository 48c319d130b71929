"""What is left when nothing tells who or why: a hang, a stuck watchdog, lost peers, noise, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import Finding, cite
from nccl_slurm.attribute.missing import WITNESSES_MIN
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["bootstrapped", "calm", "counted", "exited", "flushed", "hung", "lost_peers", "reacted", "unexplained_error"]

#: Shells tell a signal as 128 and its number, and 128 itself is a bad argument of exit.
_BY_SIGNAL = 128
#: A job goes on behind a step that failed.
_RUNS = (None, "RUNNING", "SUSPENDED", "COMPLETING")


def hung(scene: Scene) -> Finding | None:
    maybe = scene.sorts.where(lambda fact: reading.may_be_wait(fact) or reading.is_told(fact))
    facts = [fact for fact in maybe if reading.is_wait(fact) or reading.is_told(fact)]
    stuck = scene.sorts.of_kind(*reading.HEARTBEAT)
    if not facts and not stuck:
        return None
    if not facts:
        text = "The heartbeat monitor ended processes whose watchdog thread was itself blocked."
        return _finding("hang.watchdog-stuck", "watchdog-stuck", text, stuck)
    ranks = len(scene.waits)
    of_all = f" of {scene.world}" if scene.world else ""
    whom = f"{ranks}{of_all} rank{'s' if ranks > 1 or of_all else ''}" if ranks else "Ranks"
    text = f"{whom} waited in a collective until the timeout; nothing observed tells who stopped or why."
    last = _last(scene)
    facts = [*facts, *(fact for one in last for fact in scene.lost[one.rank or 0])]
    return _finding("hang.unattributed", "collective-hang-unattributed", text, facts).naming(last, proven=False)


def _last(scene: Scene) -> list[Culprit]:
    """The only rank of all that told no timeout of its own, but that it lost somebody: it may have come late, or the
    others' timeouts took its connection before its own was due."""
    left = scene.expected - scene.waits.keys()
    if len(left) != 1 or not left <= scene.lost.keys() or len(scene.waits) < WITNESSES_MIN:
        return []
    rank = min(left)
    if any(fact.role == "cause" for fact in scene.said[rank]):
        return []
    why = "all others waited until their timeouts; it lost its connection to one of them"
    return [scene.culprit(rank, why, cite([*scene.lost[rank], *(facts[0] for facts in scene.waits.values())]))]


def flushed(scene: Scene) -> Finding | None:
    """InfiniBand's *flush* follows an earlier error of the same queue pair: the first completion is the cause."""
    facts = scene.sorts.where(lambda fact: fact.role == "consequence" and fact.hint == "net-ib-transport")
    text = "Queue pairs were flushed after an error on the path; the first completion with the error was not observed."
    return _finding("hang.flushed", "net-ib-transport", text, facts) if facts else None


def bootstrapped(scene: Scene) -> Finding | None:
    """Ranks came to NCCL's bootstrap with unlike sizes, or two came with one number: they were started so, or some are
    of an earlier start. The root, which says so, then leaves, and all others lose it."""
    facts = scene.sorts.of_kind(*reading.BOOTSTRAP)
    if not facts or scene.completed:
        return None
    text = f"Ranks that were started unlike met in NCCL's bootstrap: {reading.words(facts[0], 160)}"
    return _finding("hang.bootstrapped", "rendezvous-store", text, facts, "possible")


def lost_peers(scene: Scene) -> Finding | None:
    facts = scene.sorts.where(reading.is_peer_lost)
    if told := _told_before(scene, facts):
        text = "torchrun was told to end, and no failure is told before that; connections were lost after it."
        return _finding("hang.told-to-end", "preempt-cancel", text, [*told, *facts])
    text = "Connections were lost because the other side went away; why it went was not observed."
    return _finding("hang.lost-peers", "net-peer-lost", text, facts) if facts else None


def _told_before(scene: Scene, lost: Sequence[Fact]) -> list[Fact]:
    """The words of each torchrun on a signal that it got, where no peer was lost before the first of them: one that
    ends takes its ranks along. Of a job Slurm knows whether it was ended."""
    told = [one for one in scene.sorts.of_kind(*reading.TOLD_TO_END) if "number" not in one.data]
    told = told if scene.job is None else []
    order = [[late for one in told if (late := scene.is_later(fact, one)) is not None] for fact in lost]
    return told if any(order) and all(any(known) for known in order if known) else []


def reacted(scene: Scene) -> Finding | None:
    """Other consequences with a class of their own; their cause was not observed."""
    facts = scene.sorts.where(lambda fact: fact.role == "consequence" and bool(fact.hint) and fact.trust == "job")
    if not facts:
        return None
    facts.sort(key=reading.is_end_of_run)  # a plain CANCELLED is also how srun ends the other tasks
    text = f"Only consequences were observed: {reading.words(facts[0], 160)}"
    same = [fact for fact in facts if fact.hint == facts[0].hint]
    found = _finding("hang.consequences", facts[0].hint or "unknown", text, same, "possible")
    return replace(found, action=reading.next_step(same[0]))


def counted(scene: Scene) -> Finding | None:
    """NCCL's RAS saw ranks at unlike counts, and nothing else was seen."""
    facts = scene.sorts.of_kind(*reading.COUNTED)
    text = "NCCL's RAS client saw ranks of one communicator at unlike operation counts; nothing tells who stopped."
    return _finding("hang.counted", "collective-hang-unattributed", text, facts, "possible") if facts else None


def unexplained_error(scene: Scene) -> Finding | None:
    """A call of NCCL's failed on some rank, and the line that says why is lost."""
    facts = scene.sorts.of_kind(*reading.NCCL_ERRORS)
    if not facts or scene.completed:
        return None
    text = f"A call of NCCL's failed; its own line that says why was not observed: {reading.words(facts[0], 160)}"
    found = _finding("hang.nccl-error", "rank-exception", text, facts, "possible")
    return replace(found, action="investigate")


def taken_down(scene: Scene) -> Finding | None:
    """torch's watchdog ended processes for collectives that failed or timed out; the line that tells which is lost."""
    facts = scene.sorts.of_kind(*reading.TAKEN_DOWN, *reading.ABORTED)
    if not facts or scene.completed:
        return None
    text = "torch's watchdog ended processes whose collectives had failed or timed out; which of both is not told."
    return _finding("hang.taken-down", "collective-hang-unattributed", text, facts, "possible")


def exited(scene: Scene) -> Finding | None:
    """Slurm's tasks left with an exit code of their own, none of them is a rank that is known, and nobody said why."""
    codes = ((fact, reading.number(fact.data, "exitcode")) for fact in scene.sorts.of_kind(*reading.TASK_EXITS))
    facts = [fact for fact, code in codes if code is not None and 0 < code < _BY_SIGNAL]
    runs = scene.job is not None and scene.job.state in _RUNS
    if not facts or runs or scene.completed or scene.ending.was:
        return None
    text = f"Tasks exited with a code of their own, and no line says why: {reading.words(facts[0], 160)}"
    return _finding("hang.exited", "rank-exception", text, facts, "possible")


def calm(scene: Scene) -> Finding | None:
    """The job completed, or all that was seen is noise: no launcher had to end processes."""
    noise = scene.sorts.where(lambda fact: fact.role == "benign")
    if scene.completed:
        return _finding("calm.completed", "benign", "The job completed; no failure was observed.", noise)
    if noise and scene.job is None and not scene.sorts.of_kind(*reading.STOPS):
        hint = next((fact.hint for fact in noise if fact.hint), "benign")
        return _finding("calm.noise", hint, "All that was seen is known to be harmless.", noise)
    return None


def _finding(rule: str, failure_class: str, text: str, facts: Sequence[Fact], confidence: str = "likely") -> Finding:
    first = min((fact.time for fact in facts if fact.time is not None), default=None)
    return Finding(rule, failure_class, confidence, text, facts=cite(facts), time=first)
