"""What really happened, and whether what was written down proves it. Reads the story, never a verdict.

*Determinable* is judged by what is left to read: a culprit is proven by words of its own that tell its failure, by its
own counts against those of ranks that wait, by what its agent, srun or Slurm tells of its end, or by its node's kernel.
Where these are missing and no other line names it, nobody can be named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nccl_slurm.testing import events
from nccl_slurm.testing.events import Event
from nccl_slurm.testing.story import Story

__all__ = ["Truth", "truth"]

#: With one witness it may be that one who is out of step.
_WITNESSES = 2
#: Beyond so many ranks the silence of one that was ended by SIGTERM shows nothing.
_MANY = 16
#: Classes of what is left where the cause itself was not written down.
_UNSEEN = frozenset({"collective-hang-unattributed", "net-peer-lost", "unknown"})
#: Signals that a process earns by itself.
_DEADLY = frozenset({4, 7, 8, 11})


@dataclass(frozen=True)
class Truth:
    """``accept``: classes that are right. ``ranks``, ``hosts``: those that may be named; naming any other is false."""

    failure_class: str
    accept: frozenset[str]
    ranks: frozenset[int]
    hosts: frozenset[str]
    determinable: bool

    def allows(self, rank: int | None, host: str | None) -> bool:
        """Whether naming this rank, or this host without a rank, is right."""
        return rank in self.ranks if rank is not None else host in self.hosts


def truth(story: Story) -> Truth:
    """Of the first event that is a failure; without one the job is well, or was meant to be."""
    failing = [event for event in story.scenario.events if event.kind is not None]
    if not failing:
        return Truth("benign", frozenset({"benign", "benign-teardown"}), frozenset(), frozenset(), False)
    first = min(failing, key=lambda event: -1 if event.at is None else event.at)
    seen = _Seen(story)
    provable = _PROVABLE.get(type(first))
    determinable = provable is not None and provable(seen, first)
    ranks, hosts = _named(story, first)
    kind = first.kind or "unknown"
    accept = {kind, *_ALSO.get(kind, ())} | (set() if determinable else _UNSEEN)
    if story.state in ("TIMEOUT", "CANCELLED") and not determinable:
        accept.add("preempt-cancel")
    if isinstance(first, events.NeverJoins) and not determinable:
        accept.add("rendezvous-store")
    if isinstance(first, events.Slow) and story.state == "COMPLETED":
        accept.add("benign")
    return Truth(kind, frozenset(accept), ranks, hosts, determinable)


#: Classes that say the same of what was written down.
_ALSO = {"watchdog-stuck": ("collective-missing-rank",), "storage-stall": ("collective-missing-rank",)}


def _named(story: Story, event: Event) -> tuple[frozenset[int], frozenset[str]]:
    scenario = story.scenario
    ranks = {*event.ranks, *(rank for host in event.hosts for rank in scenario.on(host))}
    hosts = {*event.hosts, *(scenario.host(rank) for rank in event.ranks)}
    return frozenset(ranks), frozenset(hosts)


class _Seen:
    """What of a story is there to be read."""

    def __init__(self, story: Story) -> None:
        self.story, self.scenario = story, story.scenario

    def files(self, rank: int) -> bool:
        """What the rank writes into its node's run folder."""
        host = self.scenario.host(rank)
        gone = host in self.scenario.lost_nodes or host in self.story.failed_nodes
        return not gone and rank not in self.scenario.lost_ranks

    def kernel(self, host: str) -> bool:
        return host not in self.scenario.lost_nodes and host not in self.story.failed_nodes

    def prints(self, rank: int) -> bool:
        """What the rank prints, wherever that goes."""
        if self.scenario.output != "redirects":
            return True
        return self.files(rank) if self.scenario.launcher == "torchrun" else rank not in self.scenario.lost_ranks

    def labelled(self, *, joined: bool = True) -> bool:
        """Its lines tell whose they are."""
        by_srun = self.scenario.launcher == "srun" and self.scenario.output == "label"
        return by_srun or (joined and self.scenario.torch >= (2, 2))

    def says(self, rank: int, *shows: str, joined: bool = True) -> bool:
        if not self.prints(rank) or not self.labelled(joined=joined):
            return False
        return any(line.shows in shows for line in self.story.ranks.get(rank, ()))

    def quoted(self, rank: int) -> bool:
        """The agent's table quotes the rank's exception with its number."""
        if rank not in self.story.exceptions:
            return False
        return self.tabled(rank)

    def tabled(self, rank: int) -> bool:
        told = self.story.agents.get(self.scenario.host(rank), ())
        return any(f"rank      : {rank} " in line.text for line in told)

    def ending(self, rank: int) -> bool:
        """Its exit status is told with its number."""
        if self.scenario.launcher == "torchrun":
            return self.tabled(rank)
        return any(f": task {rank}: " in line.text for line in self.story.slurm)

    def world_told(self) -> bool:
        """The number of ranks: by NCCL's Init lines, a dump, or the failure tables of all nodes."""
        if any(self.files(rank) for rank in (*self.story.nccl, *self.story.dumps)):
            return True
        tables = sum(any("Root Cause" in line.text for line in lines) for lines in self.story.agents.values())
        return self.scenario.launcher == "torchrun" and tables == len(self.scenario.nodes)

    def counted(self, rank: int) -> bool:
        """Its own counts are written: a dump, or the default group's in its monitor's words, which tell nothing of
        other groups."""
        if rank in self.story.dumps and self.files(rank):
            return True
        return not self.scenario.groups and self.says(rank, "told")

    def waiting(self, group: Iterable[int]) -> int:
        """Members that say that they wait, with their group's name."""
        if self.scenario.torch < (2, 4):
            return 0
        return sum(self.says(rank, "wait") for rank in group)

    def all_speak(self, but: int) -> bool:
        """Every other rank says that it waited or lost a peer."""
        return all(self.says(rank, "wait", "lost") for rank in range(self.scenario.world) if rank != but)


_Provable = Callable[[_Seen, Event], bool]


def _hang(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    groups = seen.scenario.members[rank]
    counted = seen.counted(rank) and any(seen.waiting(group.ranks) >= _WITNESSES for group in groups)
    return counted or _silent(seen, event)


def _silent(seen: _Seen, event: Event) -> bool:
    """It alone said nothing, and its end is told. Of many ranks one may just have come late, and been ended by its
    agent before it could speak. An agent's SIGKILL shows that it did not move; srun's ends whatever a step left."""
    (rank,) = event.ranks
    end = seen.story.processes[rank].end
    shows = (0, -9) if seen.scenario.launcher == "torchrun" else (0,)
    if seen.scenario.world > _MANY and (end is None or end.code not in shows):
        return False
    return seen.world_told() and seen.scenario.world > _WITNESSES and seen.all_speak(rank) and seen.ending(rank)


def _words(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    return seen.scenario.world > 1 and (seen.says(rank, "cause") or seen.quoted(rank))


def _crash(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    number = getattr(event, "signal", 0)
    return seen.ending(rank) and number in _DEADLY


def _memory(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    return seen.kernel(seen.scenario.host(rank)) or seen.ending(rank)


def _xid(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    by_words = event.kind != "nvlink-fabric" and _words(seen, event)  # a link has two ends, and a switch between
    return seen.kernel(seen.scenario.host(rank)) or by_words


def _host_words(seen: _Seen, event: Event) -> bool:
    """Ranks of the node tell that their own resource failed, and something tells that they were there."""
    ranks = [rank for host in event.hosts for rank in seen.scenario.on(host)]
    telling = [rank for rank in ranks if seen.says(rank, "cause") or seen.quoted(rank)]
    return any(seen.files(rank) or seen.tabled(rank) for rank in telling)


def _mismatch(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    others = [one for one in range(seen.scenario.world) if one != rank]
    if seen.scenario.detail:
        return sum(seen.prints(one) for one in others) >= _WITNESSES
    if seen.scenario.backend == "gloo":
        return False
    return seen.says(rank, "wait") and seen.waiting(others) >= _WITNESSES


def _never_joins(seen: _Seen, event: Event) -> bool:
    (rank,) = event.ranks
    if seen.scenario.backend != "gloo" or seen.scenario.world <= _WITNESSES or not seen.world_told():
        return False
    return all(seen.says(one, "named", joined=False) for one in range(seen.scenario.world) if one != rank)


def _always(seen: _Seen, event: Event) -> bool:
    """Slurm's own word."""
    return True


_PROVABLE: dict[type[Event], _Provable] = {
    events.Hang: _hang,
    events.Freeze: _silent,
    events.Mismatch: _mismatch,
    events.Raise: _words,
    events.Crash: _crash,
    events.HostOutOfMemory: _memory,
    events.Xid: _xid,
    events.NodeFails: _always,
    events.ShmFull: _host_words,
    events.LowMemlock: _host_words,
    events.NeverJoins: _never_joins,
}
