"""Causes that lie between ranks or under all of them: network, rendezvous, limits, versions, storage.

The one who prints such a line is often the victim of the other end, so nobody is named from it, except where the line
speaks of the printing node's own resource (/dev/shm, locked memory, a host adapter that failed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_slurm.attribute import endings, reading
from nccl_slurm.attribute.death import CLASSES_OF_A_RANK, action_of_signal, is_aftermath
from nccl_slurm.attribute.finding import Finding, cite
from nccl_slurm.attribute.machine import HARDWARE
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["anonymous", "find"]

#: Classes whose line speaks of the printing node itself.
_LOCAL = frozenset({"resource-shm", "resource-memlock"})
#: The limit may be the job's own, and alike on all its nodes.
_LIMITS = frozenset({"resource-memlock"})
#: Classes that other rules judge.
_ELSEWHERE = frozenset(
    {
        "collective-mismatch",
        "collective-missing-rank",
        "collective-hang-unattributed",
        "watchdog-stuck",
        "slurm-launch",
        "slurm-node-fail",
        "preempt-cancel",
    }
)
#: What a class tends to bring about; a follower is judged only where its leader is absent.
_LEADS = (
    "resource-shm",
    "resource-memlock",
    "version-mismatch",
    "nvlink-fabric",
    "net-efa-ofi",
    "net-ib-setup",
    "storage-stall",
    "rendezvous-store",
    "net-ib-transport",
    "net-socket-connect",
)


def find(scene: Scene) -> Finding | None:
    """The leading shared cause: by time where all lines have one, else by `_LEADS`, then by place in the file."""
    facts = [fact for fact in scene.sorts.where(_may_be_shared) if _is_shared(scene, fact)]
    return _finding(scene, _leading(facts), "shared-cause") if facts else None


def anonymous(scene: Scene) -> Finding | None:
    """A cause of one rank (exception, device error) whose rank is not told; else a bare exit status by itself."""
    maybe = scene.sorts.where(lambda fact: fact.role == "cause" or fact.producer in reading.MACHINE_PRODUCERS)
    facts = [fact for fact in maybe if _is_nameless(scene, fact) and not endings.after_end(scene, fact)]
    words = [fact for fact in facts if not reading.tells_only_an_exit(fact) and not _gave_up(scene, fact)]
    facts = words or [fact for fact in facts if _is_own_exit(scene, fact)]
    if not facts:
        return None
    telling = [fact for fact in facts if fact.hint not in ("rank-exception", "process-signal")] or facts
    same = [f for f in telling if f.hint == telling[0].hint]
    found = _finding(scene, same, "shared-cause.no-rank")
    return replace(found, action=_action(scene, same, found)) if found.action is None else found


def _action(scene: Scene, facts: Sequence[Fact], found: Finding) -> str | None:
    """By the signal where it is told; a process that died for no told reason is worth a look.

    So is an exit code while NCCL reported an error whose reason is not there: the program only passed it on.
    """
    if found.failure_class == "process-signal":
        return action_of_signal(reading.signalled(facts[0])) or "unknown"
    bare = all(reading.tells_only_an_exit(fact) for fact in facts)
    return "investigate" if bare and bool(scene.sorts.of_kind(*reading.NCCL_ERRORS)) else None


def _is_nameless(scene: Scene, fact: Fact) -> bool:
    """Machine faults and memory kills have rules of their own; root's word about another host is none about the run."""
    if fact.producer in reading.MACHINE_PRODUCERS:
        return scene.is_app_fault(fact)
    nameless = fact.rank is None or reading.kind_of(fact) in reading.OF_TWO
    own = fact.role == "cause" and nameless and fact.hint in CLASSES_OF_A_RANK
    return own and not reading.was_sent_from_outside(fact) and not is_aftermath(scene, fact)


def _is_own_exit(scene: Scene, fact: Fact) -> bool:
    """Exit codes and SIGABRT follow any hang or lost peer; other signals that no agent sent are a lead of their own.

    SIGABRT is also how torch's heartbeat monitor and its watchdog end a process.
    """
    code = reading.signalled(fact)
    if scene.was_killed_with_step(fact):
        return False
    if code == -6 and scene.sorts.of_kind(*reading.HEARTBEAT, *reading.TAKEN_DOWN):
        return False
    if code is not None and code < 0 and code not in (-6, -15):
        return True
    return not scene.reacted and not _follows_a_reaction(scene, fact)


def _gave_up(scene: Scene, fact: Fact) -> bool:
    """SIGABRT, in whose words ever, is how the process of a rank ends that waited or lost a peer. A server that sees a
    worker gone sees the same; but what others lost may be just that worker."""
    if fact.kind in reading.WORKER_GONE:
        return any(scene.is_later(fact, wait) is not False for wait in scene.wait_lines)
    return reading.signalled(fact) == -6 and not _is_own_exit(scene, fact)


def _follows_a_reaction(scene: Scene, end: Fact) -> bool:
    """Words on a wait or a loss that stand before the exit, or in no known order: whoever said them ended so."""
    return any(scene.is_later(end, one) is not False for one in scene.sorts.where(_is_reaction))


def _is_reaction(fact: Fact) -> bool:
    told = fact.role == "consequence" and fact.hint is not None and fact.trust == "job"
    return told and fact.producer not in ("elastic", "slurm") and fact.hint not in CLASSES_OF_A_RANK


def _may_be_shared(fact: Fact) -> bool:
    return fact.role == "cause" and fact.hint is not None and fact.hint not in CLASSES_OF_A_RANK | _ELSEWHERE


def _is_shared(scene: Scene, fact: Fact) -> bool:
    if not _may_be_shared(fact) or fact.hint is None:
        return False
    if fact.hint in HARDWARE and fact.producer in reading.MACHINE_PRODUCERS:
        return False
    if fact.rank is not None and fact.rank in scene.waits and fact.time is None:
        return fact.hint in _LOCAL or fact.producer != "python"
    return not fact.hint.startswith("benign") and not endings.after_end(scene, fact)


def _leading(facts: Sequence[Fact]) -> list[Fact]:
    order = {name: place for place, name in enumerate(_LEADS)}
    leader = min(facts, key=lambda fact: order.get(fact.hint or "", len(order)))
    return [fact for fact in facts if fact.hint == leader.hint]


def _finding(scene: Scene, facts: Sequence[Fact], rule: str) -> Finding:
    first = facts[0]
    named = _named(scene, facts)
    proven = bool(named) and all(_is_of_this_node(scene, fact) for fact in facts)
    own_adapter = any(fact.kind in reading.OWN_ADAPTER for fact in facts)
    return Finding(
        rule=f"{rule}.{first.hint}",
        failure_class=first.hint or "unknown",
        confidence="proven" if proven else "likely",
        summary=reading.words(first, 240),
        facts=cite(facts),
        action="investigate" if own_adapter else next(filter(None, map(reading.next_step, facts)), None),
        time=min((fact.time for fact in facts if fact.time is not None), default=None),
    ).naming(named, proven=proven)


def _named(scene: Scene, facts: Sequence[Fact]) -> list[Culprit]:
    """The one node that speaks of its own resource; with a job, only by its ranks, whose node Slurm knows."""
    local = [fact for fact in facts if fact.hint in _LOCAL or fact.kind in reading.OWN_ADAPTER | reading.ADAPTERS]
    if len(local) != len(facts):
        local = [fact for fact in local if fact.kind in reading.ADAPTERS]
    ranks = sorted({fact.rank for fact in local if fact.rank is not None})
    hosts = {host for host in (scene.host(f.rank) or _own_host(scene, f) for f in local) if host}
    if not local or len(hosts) != 1:
        return []
    if ranks:
        return [scene.culprit(rank, "its node's own resource failed", cite(local)) for rank in ranks[:8]]
    return [Culprit("its own resource failed", host=hosts.pop(), evidence=cite(local))]


def _is_of_this_node(scene: Scene, fact: Fact) -> bool:
    """What another rank was to make is not; a limit is where other nodes are heard of that had none. Which of its
    node's adapters a job used, the kernel does not say."""
    if fact.kind in reading.OF_A_PEER:
        return False
    if fact.kind in reading.ADAPTERS:
        return False
    return fact.hint not in _LIMITS or len(scene.heard_hosts) > 1


def _own_host(scene: Scene, fact: Fact) -> str | None:
    vouched = scene.job is None or fact.rank is not None or fact.trust == "root"
    return scene.node(fact.host) if vouched else None
