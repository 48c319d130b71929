"""Which process failed first: exceptions, device errors, signals, exit codes. Consequences are never causes.

A rank that waited, lost a peer or was ended by its agent reacted to someone else. torchrun's own "root cause" is no
evidence: it compares whole seconds, judges one node and puts a victim with an error file before a killed rank. What
counts here is who has a cause of its own at all, and whether everyone else's end is explained as a consequence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_slurm.attribute import endings, progress, reading
from nccl_slurm.attribute.clocks import Moment
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.outlived import ended_by_itself, noticed, outlived, was_alive
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Fact

__all__ = ["CLASSES_OF_A_RANK", "Death", "action_of_signal", "deaths", "find", "is_aftermath"]

#: Classes whose cause lies in one process or under it.
CLASSES_OF_A_RANK = frozenset(
    {"rank-exception", "cuda-oom", "host-oom", "process-signal", "gpu-hw-ecc", "gpu-hw-lost", "gpu-app-fault"}
)
#: Causes that no other rank can bring about: the first such rank needs no alibi of the others.
_INTRINSIC = frozenset({"cuda-oom", "gpu-hw-ecc", "gpu-hw-lost"})
#: SIGSEGV, SIGBUS, SIGILL, SIGFPE come from the process itself; SIGABRT follows exceptions and aborted communicators.
_OWN_SIGNALS = frozenset({-11, -7, -4, -8})
#: Two failures closer than this are not ordered by clocks: torch's and Slurm's tables have whole seconds.
MARGIN_S = 2.0
#: Ranks whose own words must tell of the loss.
WITNESSES_MIN = 2
#: Of so many others one may have left no word of its own, where that many others explained themselves: of a thousand
#: records some get lost. In a small job the rank that nobody heard of is as likely to have failed first.
DARK_SHARE, CROWD_MIN = 4, 16

_ATTEMPT = re.compile(r"^(.{0,4096}?)attempt_(\d{1,6})/")


@dataclass(frozen=True)
class Death:
    """A rank that failed by itself.

    ``intrinsic``: no other rank can have brought it about. ``weak``: an exit code without any word why, or SIGABRT, by
    which torch's watchdog ends a rank that lost another one. ``late``: the time is when an agent looked, which may be
    any time after the death.
    """

    rank: int
    failure_class: str
    why: str
    facts: Sequence[Fact]
    time: float | None = None
    uncertainty_s: float = 0.0
    intrinsic: bool = False
    late: bool = False
    weak: bool = False
    action: str | None = None


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


def deaths(scene: Scene) -> list[Death]:
    """All ranks with a failure of their own, by rank."""
    found = (_death(scene, rank) for rank in sorted(scene.seen))
    return [death for death in found if death]


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
        folder, attempt = _attempt(death.facts[0]) if death.facts else ("", 0)
        earliest[folder] = min(attempt, earliest.get(folder, attempt))
    return [d for d in own if not d.facts or _attempt(d.facts[0])[1] == earliest[_attempt(d.facts[0])[0]]]


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
    return code == 0 or (code == -6 and _may_abort(scene, rank))


def _alibis(scene: Scene, culprit: int) -> list[Fact]:
    """One consequence a rank, for the reader to check."""
    return [facts[0] for rank, facts in sorted(scene.consequences.items()) if rank != culprit]


def _death(scene: Scene, rank: int) -> Death | None:
    causes = _own_causes(scene, rank)
    code = scene.exits.get(rank)
    if causes:
        return None if _ended_nothing(scene, rank) else _by_word(scene, rank, causes)
    if code is None or code == 0 or rank in scene.ended_by_agent:
        return None
    if code < 0:
        return _by_signal(scene, rank, code)
    return None if scene.spoke(rank) else _by_exit(scene, rank, code)


def _ended_nothing(scene: Scene, rank: int) -> bool:
    """What it told was handled: it ended well and nobody missed it, or lived until the run was ended from outside and
    nobody had reacted to anything until then."""
    if scene.exits.get(rank) == 0:
        return not scene.reacted
    return scene.ending.was and was_alive(scene, rank) and not noticed(scene, rank)


def _own_causes(scene: Scene, rank: int) -> list[Fact]:
    """Causes of the earliest attempt that came before this rank began to wait and before the run was ended, and that it
    did not outlive.

    A line of the kernel that a rank prints is none of them: the node's own kernel log tells of machines.
    """
    own = (fact for fact in scene.causes.get(rank, ()) if fact.producer not in reading.MACHINE_PRODUCERS)
    words = (*own, *(fact for fact in scene.kernel_words(rank) if fact.role == "cause"))
    said = [f for f in words if f.hint in CLASSES_OF_A_RANK]
    said = [f for f in said if not (reading.tells_only_an_exit(f) or reading.was_sent_from_outside(f))]
    said = [f for f in said if not _is_reaction(scene, rank, f) and not endings.after_end(scene, f)]
    said = [f for f in said if not is_aftermath(scene, f) and not outlived(scene, rank, f)]
    said = [f for f in said if reading.kind_of(f) not in reading.OF_TWO]
    first = min((_attempt(f)[1] for f in said), default=0)
    return [f for f in said if _attempt(f)[1] == first]


def _is_reaction(scene: Scene, rank: int, cause: Fact) -> bool:
    """The rank had waited, or lost a peer, before: programs wrap such errors in exceptions of their own."""
    waits = (wait for wait in scene.waits.get(rank, ()) if not _is_later_attempt(wait, cause))
    lost = (loss for loss in scene.lost.get(rank, ()) if not _is_later_attempt(loss, cause))
    return any(_after_wait(wait, cause) for wait in waits) or any(not _comes_before(cause, loss) for loss in lost)


def is_aftermath(scene: Scene, cause: Fact) -> bool:
    """An allocation of an absurd size after anybody had timed out, aborted or lost a peer: by their lines in one file,
    else by time."""
    if not reading.is_absurd(cause):
        return False
    told = scene.sorts.where(lambda fact: fact.role == "consequence" or reading.may_be_wait(fact))
    reactions = (fact for fact in told if fact.role == "consequence" or reading.is_wait(fact))
    return any(_is_before(scene, fact, cause) for fact in reactions)


def _is_before(scene: Scene, one: Fact, other: Fact) -> bool:
    if one.file is not None and one.file == other.file and None not in (one.line, other.line):
        return (one.line or 0) < (other.line or 0)
    first, second = scene.moment(one), scene.moment(other)
    return first is not None and second is not None and scene.clocks.earlier(first, second, 0.0)


def _after_wait(wait: Fact, cause: Fact) -> bool:
    """Unless the cause is timed before the wait began."""
    since = reading.waited_since(wait)
    return since is None or cause.time is None or cause.time + (cause.uncertainty_s or 0.0) >= since


def _comes_before(cause: Fact, loss: Fact) -> bool:
    """By their lines in one file, else by their times beyond uncertainty; False where that can't be told."""
    if cause.file is not None and cause.file == loss.file and cause.line is not None and loss.line is not None:
        return cause.line < loss.line
    if cause.time is None or loss.time is None:
        return False
    return cause.time <= loss.time + (cause.uncertainty_s or 0.0) + (loss.uncertainty_s or 0.0)


def _is_later_attempt(fact: Fact, cause: Fact) -> bool:
    """Of one rank: its agent's folder and its agent's output count attempts alike, two folders do not."""
    (one, number), (other, of_cause) = _attempt(fact), _attempt(cause)
    in_folders = bool(_ATTEMPT.search(fact.file or "") and _ATTEMPT.search(cause.file or ""))
    return number > of_cause and (one == other or not in_folders)


def _attempt(fact: Fact) -> tuple[str, int]:
    """(folder of the agent, or its output; its restart number): from the file's place, else as the line was dated."""
    match = _ATTEMPT.search(fact.file or "")
    if match:
        return match.group(1), int(match.group(2))
    return fact.file or "", reading.number(fact.data, "attempt") or 0


def _by_word(scene: Scene, rank: int, causes: Sequence[Fact]) -> Death:
    """The most telling class: a device error says more than the exception in which it was reported."""
    best = next((fact for fact in causes if fact.hint != "rank-exception"), causes[0])
    times = [fact for fact in causes if fact.time is not None]
    timed = min(times, key=lambda fact: fact.time or 0.0) if times else None
    return Death(
        rank=rank,
        failure_class=best.hint or "rank-exception",
        why=reading.words(best, 160),
        facts=[best, *(fact for fact in causes if fact is not best)],
        time=timed.time if timed else None,
        uncertainty_s=(timed.uncertainty_s or 0.0) if timed else 0.0,
        intrinsic=_is_intrinsic(best) and (reading.is_last_word(best) or ended_by_itself(scene, rank)),
        action=_step_after(best),
    )


def _is_intrinsic(fact: Fact) -> bool:
    return (fact.hint in _INTRINSIC and not reading.is_absurd(fact)) or _is_told_intrinsic(fact)


def _is_told_intrinsic(fact: Fact) -> bool:
    """SIGABRT is how torch's watchdog and the C++ runtime end whoever gave up, a waiting rank too."""
    return fact.kind in reading.INTRINSIC and reading.signalled(fact) != -6


def _step_after(fact: Fact) -> str | None:
    """Of a signal that the line tells, else of its form."""
    by_signal = action_of_signal(reading.signalled(fact)) if fact.hint == "process-signal" else None
    return by_signal or reading.next_step(fact)


def _by_signal(scene: Scene, rank: int, code: int) -> Death | None:
    """SIGTERM is never a rank's own failure, and a victim may crash while it winds up."""
    if code == -15 or rank in scene.waits or rank in scene.lost or (code == -6 and _may_abort(scene, rank)):
        return None
    facts = _exit_facts(scene, rank)
    why, (first, uncertainty) = f"ended by {signal_name(code)}", _when(facts)
    own, action, weak = code in _OWN_SIGNALS, action_of_signal(code), code == -6 and scene.uses_nccl
    late = not _is_dated(facts)
    return Death(rank, "process-signal", why, facts, first, uncertainty, own, late, weak, action)


def _may_abort(scene: Scene, rank: int) -> bool:
    """SIGABRT is how watchdogs end all ranks of a hang, the culprit's too, and those of NCCL any rank that lost another
    one; and it is what follows data of a wrong size."""
    lost = scene.uses_nccl and (scene.reacted or bool(scene.stricken))
    leavers = scene.sorts.of_kind(*reading.EXITED_WITH_THREADS)
    left = any(fact.rank in (None, rank) for fact in leavers)
    return lost or left or scene.timed_out or scene.mismatched or rank in scene.consequences


def signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def action_of_signal(code: int | None) -> str | None:
    """SIGKILL that nobody owns up to is most often a memory limit, SIGBUS a full /dev/shm; the others tell nothing."""
    return {-9: "fix-config", -7: "fix-config"}.get(code or 0)


def _by_exit(scene: Scene, rank: int, code: int) -> Death:
    facts = _exit_facts(scene, rank)
    first, uncertainty = _when(facts)
    nameless = _nameless(scene)
    why = f"exit code {code}, {'and an exception that names no rank' if nameless else 'without a word why'}"
    failure = nameless.hint or "rank-exception" if nameless else "rank-exception"
    return Death(rank, failure, why, facts, first, uncertainty, code != 1, not _is_dated(facts), weak=True)


def _nameless(scene: Scene) -> Fact | None:
    """The word of a rank that is not told: the most telling one, where all of them tell of one class."""
    causes = scene.sorts.where(lambda fact: fact.role == "cause" and fact.producer in ("python", "cuda", "torch"))
    words = [fact for fact in causes if fact.rank is None]
    telling = [f for f in words if f.hint in CLASSES_OF_A_RANK and f.hint != "rank-exception"]
    if telling:
        return telling[0] if len({fact.hint for fact in telling}) == 1 else None
    return next((fact for fact in words if fact.kind == reading.EXCEPTION), None)


def _exit_facts(scene: Scene, rank: int) -> list[Fact]:
    """Lines that tell this rank's exit: the agent's table, or srun's line about its task."""
    own = [fact for fact in scene.said.get(rank, ()) if reading.number(fact.data, "exitcode", "exit") is not None]
    this = [fact for fact in own if reading.number(fact.data, "exitcode", "exit") == scene.exits.get(rank)]
    return this or own or scene.by_task.get(rank, [])


def _is_dated(facts: Sequence[Fact]) -> bool:
    """slurmstepd's word says by its uncertainty how much earlier the death may have been."""
    return bool(facts) and facts[0].kind == reading.TASK_ENDED and facts[0].time is not None


def _when(facts: Iterable[Fact]) -> tuple[float | None, float]:
    timed = [fact for fact in facts if fact.time is not None]
    first = min(timed, key=lambda fact: fact.time or 0.0) if timed else None
    return (first.time, first.uncertainty_s or 0.0) if first else (None, 0.0)
