"""What each rank says of its own failure: exceptions, device errors, signals, exit codes. Consequences are none.

A rank that waited, lost a peer or was ended by its agent reacted to someone else; `first_failure` compares the rest.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_slurm.attribute import endings, reading
from nccl_slurm.attribute.outlived import ended_by_itself, noticed, outlived, was_alive
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Fact

__all__ = ["CLASSES_OF_A_RANK", "Death", "action_of_signal", "attempt_of", "deaths", "is_aftermath", "may_abort"]

#: Classes whose cause lies in one process or under it.
CLASSES_OF_A_RANK = frozenset(
    {"rank-exception", "cuda-oom", "host-oom", "process-signal", "gpu-hw-ecc", "gpu-hw-lost", "gpu-app-fault"}
)
#: Causes that no other rank can bring about: the first such rank needs no alibi of the others.
_INTRINSIC = frozenset({"cuda-oom", "gpu-hw-ecc", "gpu-hw-lost"})
#: SIGSEGV, SIGBUS, SIGILL, SIGFPE come from the process itself; SIGABRT follows exceptions and aborted communicators.
_OWN_SIGNALS = frozenset({-11, -7, -4, -8})

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


def deaths(scene: Scene) -> list[Death]:
    """All ranks with a failure of their own, by rank."""
    found = (_death(scene, rank) for rank in sorted(scene.seen))
    return [death for death in found if death]


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
    said = [f for f in said if reading.kind_of(f) not in reading.OF_TWO and not _was_gathered(scene, f)]
    first = min((attempt_of(f)[1] for f in said), default=0)
    return [f for f in said if attempt_of(f)[1] == first]


def _was_gathered(scene: Scene, cause: Fact) -> bool:
    """Where the failures that it lists were read too, it is none of its own."""
    return reading.passes_on(cause) and bool(scene.sorts.having("gathered_of"))


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
    (one, number), (other, of_cause) = attempt_of(fact), attempt_of(cause)
    in_folders = bool(_ATTEMPT.search(fact.file or "") and _ATTEMPT.search(cause.file or ""))
    return number > of_cause and (one == other or not in_folders)


def attempt_of(fact: Fact) -> tuple[str, int]:
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
    if code == -15 or rank in scene.waits or rank in scene.lost or (code == -6 and may_abort(scene, rank)):
        return None
    facts = _exit_facts(scene, rank)
    why, (first, uncertainty) = f"ended by {signal_name(code)}", _when(facts)
    own, action, weak = code in _OWN_SIGNALS, action_of_signal(code), code == -6 and scene.uses_nccl
    late = not _is_dated(facts)
    return Death(rank, "process-signal", why, facts, first, uncertainty, own, late, weak, action)


def may_abort(scene: Scene, rank: int) -> bool:
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
