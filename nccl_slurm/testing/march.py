"""The steps of a job: every rank goes on until something holds it, or the collective that it entered never ends."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from nccl_slurm.testing import events
from nccl_slurm.testing.events import Event
from nccl_slurm.testing.scenario import DEFAULT_GROUP
from nccl_slurm.testing.story import Process, Story, Wait

__all__ = ["INIT_S", "OP", "Strike", "begin_of", "march"]

#: Seconds from the job's start to step 0: imports, rendezvous, communicators.
INIT_S = 25.0
OP, NUMEL = "ALLREDUCE", 1 << 20
_JITTER = 0.05
_COMM_S = 0.02

#: Events that hold a rank, and what of it still moves.
_HOLD: dict[type[Event], str] = {events.Hang: "code", events.Freeze: "kernel", events.BlockWatchdog: "watchdog"}
#: Events after which the rank takes no further step; what becomes of it is told by what strikes.
_STOP = (
    events.NodeFails,
    events.StorageStalls,
    events.Xid,
    events.Raise,
    events.Crash,
    events.Exit,
    events.HostOutOfMemory,
)
#: Events by which the last collective of their step never ends for anybody.
_SWALLOW = (events.Stall, events.LinkDown, events.PathBreaks, events.EfaError)
#: Events after which no rank takes another step.
_END_ALL = (events.Cancel, events.ScriptFails)


class Strike(NamedTuple):
    """An event and the true time at which it happens."""

    time: float
    event: Event


def begin_of(story: Story, step: int) -> float:
    return story.scenario.start + INIT_S + step * story.scenario.step_s


def march(story: Story) -> list[Strike]:
    """Leaves each process where it ends up by itself. Returns the events that others react to, with their times."""
    return _March(story).run()


class _March:
    def __init__(self, story: Story) -> None:
        self.story, self.scenario = story, story.scenario
        self.strikes: list[Strike] = []
        self.at: dict[tuple[int, int], list[Event]] = defaultdict(list)
        self.slow: dict[int, list[events.Slow]] = defaultdict(list)
        for event in self.scenario.events:
            if isinstance(event, events.Slow):
                self.slow[event.rank].append(event)
            for rank in self._touched(event):
                self.at[rank, event.at or 0].append(event)
        timed = [event for event in self.scenario.events if event.at is not None]
        self.swallowed = {event.at for event in timed if isinstance(event, _SWALLOW)}
        ends = [event.at or 0 for event in timed if isinstance(event, _END_ALL)]
        self.last = min([*ends, self.scenario.steps])
        self.first = max(0, min([event.at or 0 for event in timed] + [self.scenario.steps]) - 1)
        self.inside: dict[tuple[str, int], int] = defaultdict(int)
        self.since: dict[tuple[str, int], float] = {}
        self.odd: set[tuple[str, int]] = set()
        self.ready: deque[Process] = deque()

    def _touched(self, event: Event) -> tuple[int, ...]:
        if event.at is None:
            return ()
        if isinstance(event, (events.NodeFails, events.StorageStalls)):
            return tuple(self.scenario.on(event.host))
        return event.ranks

    def run(self) -> list[Strike]:
        for process in self.story.processes:
            process.step, process.at = self.first, begin_of(self.story, self.first)
            for group in self.scenario.members[process.rank]:
                process.entered[group.guid] = process.done[group.guid] = self.first
            self.ready.append(process)
        while self.ready:
            self._advance(self.ready.popleft())
        for event in self.scenario.events:
            if isinstance(event, (*_SWALLOW, *_END_ALL)):
                self.strikes.append(Strike(begin_of(self.story, event.at or 0) + self.scenario.step_s, event))
        return sorted(self.strikes, key=lambda strike: strike.time)

    def _advance(self, process: Process) -> None:
        if process.step >= self.last:
            process.finished = process.step >= self.scenario.steps
            return
        if process.place_in_step == 0 and not self._work(process):
            return
        self._enter(process)

    def _work(self, process: Process) -> bool:
        """The step's own work; whether the rank is still there after it."""
        process.at += self.scenario.step_s * (1 - self.story.chance.random() * _JITTER) - _COMM_S
        process.at += sum(slow.seconds for slow in self.slow.get(process.rank, ()) if process.step >= slow.step)
        for event in self.at.get((process.rank, process.step), ()):
            hold = _HOLD.get(type(event))
            if hold is not None:
                process.stuck = hold
            elif isinstance(event, _STOP):
                process.stuck = "kernel"
            else:
                if isinstance(event, events.Say):
                    self.story.print(process.rank, process.at, event.text)
                continue
            self.strikes.append(Strike(process.at, event))
            return False
        return True

    def _enter(self, process: Process) -> None:
        group = self.scenario.members[process.rank][process.place_in_step]
        seq = process.entered[group.guid] + 1
        op, numel = OP, NUMEL
        if group.guid == DEFAULT_GROUP[0]:
            for event in self.at.get((process.rank, process.step), ()):
                if isinstance(event, events.Mismatch):
                    op, numel = event.op, event.numel
                    self.odd.add((group.guid, seq))
                    self.strikes.append(Strike(process.at, event))
        if process.at > self.since.setdefault((group.guid, seq), process.at) + self.scenario.timeout_s:
            process.stuck = "code"  # the others will have given up before it comes
            return
        process.entered[group.guid] = seq
        process.wait = Wait(group, seq, process.at, op, numel)
        self.inside[group.guid, seq] += 1
        swallowed = group.guid == DEFAULT_GROUP[0] and process.step in self.swallowed
        if self.inside[group.guid, seq] == len(group.ranks) and (group.guid, seq) not in self.odd and not swallowed:
            self._complete(group.ranks, group.guid, seq)

    def _complete(self, ranks: tuple[int, ...], guid: str, seq: int) -> None:
        members = [self.story.processes[rank] for rank in ranks]
        at = max(member.at for member in members) + _COMM_S
        for member in members:
            member.at, member.wait, member.done[guid] = at, None, seq
            member.place_in_step += 1
            if member.place_in_step == len(self.scenario.members[member.rank]):
                member.step, member.place_in_step = member.step + 1, 0
            self.ready.append(member)
