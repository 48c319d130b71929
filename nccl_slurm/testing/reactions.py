"""What the others do of it: time-outs, lost peers, agents, srun. A queue of moments, worked off until nobody lives."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from nccl_slurm.testing.lines import elastic, nccl, slurm, torch
from nccl_slurm.testing.lines.elastic import Failure
from nccl_slurm.testing.recorder import dump
from nccl_slurm.testing.story import End, Process, Story

__all__ = ["Reactions"]

#: How long a queue pair retries by NCCL's defaults from 2.23 on (docs/report.md, timeouts).
RETRIES_S = 31.0
#: torch's heartbeat monitor.
HEARTBEAT_S = 480.0
#: Slurm's: from SIGTERM to SIGKILL, and until a silent node counts as down.
KILL_WAIT_S, SLURMD_TIMEOUT_S = 30.0, 300.0
#: What is left hanging runs into the job's time limit.
LIMIT_S = 3600.0
_CALL = ("dist.all_reduce(gradient)",)


class Reactions:
    """Works on one story. `died`, `raised` and the like may be called by what starts or ends a job."""

    def __init__(self, story: Story) -> None:
        self.story, self.scenario, self.place = story, story.scenario, story.place
        self.now = self.scenario.start
        self.first_fired: int | None = None
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._noticed: dict[str, int] = {}
        self.agents_gone: set[str] = set()
        self.ending = False

    # --- the clockwork

    def later(self, at: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._queue, (at, next(self._order), what, arguments))

    def soon(self, low: float, high: float) -> float:
        return self.now + self.story.chance.uniform(low, high)

    def run(self) -> None:
        while self._queue or self._left_hanging():
            if not self._queue:
                self.end_job(self.now + LIMIT_S, "time")
            self.now, _, what, arguments = heapq.heappop(self._queue)
            what(*arguments)

    def _left_hanging(self) -> bool:
        return not self.ending and any(process.lives for process in self.story.processes)

    def process(self, rank: int) -> Process:
        return self.story.processes[rank]

    def watch(self) -> None:
        """Clocks of all that wait, and the end of all that are done."""
        for process in self.story.processes:
            if process.finished:
                self.later(process.at + 1.0, self.finished, process)
            elif process.wait is not None:
                limit = process.wait.since + self.scenario.timeout_s + self.story.chance.uniform(0.005, 0.1)
                self.later(limit, self.timed_out, process)

    def finished(self, process: Process) -> None:
        if not process.lives:
            return
        if self.scenario.noise and self.scenario.backend == "nccl" and self.scenario.torch >= (2, 4):
            clock = self.story.clock(process.rank, self.now)
            self.story.print(process.rank, self.now, torch.not_destroyed(self.scenario, process.rank, clock))
        self.died(process, 0)

    # --- a rank ends

    def died(self, process: Process, code: int | None) -> None:
        """Its agent, srun, and those who are in a collective with it notice."""
        if not process.lives:
            return
        process.end = End(self.now, code)
        host = self.scenario.host(process.rank)
        if code is not None and self.scenario.launcher == "srun":
            if code != 0:
                self.later(self.soon(0.02, 0.1), self.task_ended, host, process.rank, code)
        elif code:
            poll = 0.1 if self.scenario.torch >= (2, 3) else 5.0
            self.later(self.soon(0.01, poll), self.agent_noticed, host, process)
        if not process.finished:
            self._lost_by_others(process, gone=code is None)

    def raised(self, process: Process, last: str, calls: tuple[str, ...], shows: str, joined: bool = True) -> None:
        """An exception that nobody catches: traceback, error.json, and the end with status 1."""
        if not process.lives or process.leaving:
            return
        process.leaving, process.stuck = True, None
        rank, scenario = process.rank, self.scenario
        lines = torch.traceback(scenario, rank, last, calls, joined=joined)
        words = last.count("\n") + 1
        self.story.print(rank, self.now, lines[:-words])
        self.story.print(rank, self.now, lines[-words:], shows)
        if scenario.record and scenario.launcher == "torchrun":
            stack = "\n".join(torch.traceback(scenario, rank, last, calls, joined=False))
            seen = self.story.clock(rank, self.now)
            self.story.error_files[rank] = elastic.error_file(last, stack, seen)
            self.story.exceptions[rank] = stack
        self.later(self.soon(0.2, 0.6), self.died, process, 1)

    def aborted(self, process: Process, after_s: float) -> None:
        process.leaving = True
        self.later(self.now + after_s, self.died, process, -6)

    # --- clocks that run out

    def timed_out(self, process: Process) -> None:
        wait = process.wait
        if wait is None or not process.lives or process.leaving or process.stuck:
            return
        if self.scenario.backend == "gloo":
            sends = self.story.chance.random() < 0.3
            text = torch.gloo_timeout(self.scenario, sends=sends)
            self.raised(process, text, _CALL, "wait")
            return
        process.fired = True
        rank, scenario, clock = process.rank, self.scenario, self.story.clock(process.rank, self.now)
        text = torch.watchdog(scenario, wait.group, rank, wait.seq, wait.op, wait.numel, self.now - wait.since)
        self.story.print(rank, self.now, torch.timeout(scenario, rank, clock, text), "wait")
        counts = process.counts(wait.group.guid)
        self._status(process, clock, wait.seq, counts, timed_out=True)
        if self.first_fired is None:
            self.first_fired = rank
            for other in self.story.processes:
                self.later(self.soon(0.05, 1.0), self.was_told, other, rank)
        if not process.told:
            process.told = True
            self._signal(process, clock, None)
        wait_s = scenario.dump_s if scenario.torch >= (2, 4) else 0.2
        self.later(self.now + wait_s, self._taken_down, process, text)

    def _status(self, process: Process, clock: float, seq: int, counts: tuple[int, int], *, timed_out: bool) -> None:
        wait = process.wait
        if wait is None:
            return
        line = torch.status(self.scenario, wait.group, process.rank, clock, seq, counts, timed_out=timed_out)
        if line is not None:
            self.story.print(process.rank, self.now, line, "count")

    def _taken_down(self, process: Process, why: str) -> None:
        if process.lives and process.wait is not None:
            clock = self.story.clock(process.rank, self.now)
            self.story.print(
                process.rank, self.now, torch.taking_down(self.scenario, process.wait.group, process.rank, clock, why)
            )
            self.aborted(process, 0.1)

    def was_told(self, process: Process, by: int) -> None:
        """The heartbeat monitor of a process whose own watchdog did not fire; nothing moves in a stuck process."""
        if process.lives and not process.told and process.stuck in (None, "code") and not process.joining:
            process.told = True
            self._signal(process, self.story.clock(process.rank, self.now), by)

    def _signal(self, process: Process, clock: float, by: int | None) -> None:
        counts = process.counts(self.scenario.all_ranks.guid)
        dumps = self.scenario.dumps and self.scenario.torch >= (2, 4)
        lines = torch.told(self.scenario, process.rank, clock, counts, by, dumps=dumps)
        self.story.print(process.rank, self.now, lines, "told")
        if dumps:
            self.story.dumps[process.rank] = dump(self.scenario, process, clock)

    def heartbeat(self, process: Process) -> None:
        if process.lives:
            clock = self.story.clock(process.rank, self.now)
            self.story.print(process.rank, self.now, torch.heartbeat(self.scenario, process.rank, clock), "stuck")
            if self.scenario.dumps and self.scenario.torch >= (2, 4):
                self.story.dumps[process.rank] = dump(self.scenario, process, clock)
            process.stuck = None
            self.aborted(process, 1.0)

    # --- peers

    def _lost_by_others(self, process: Process, *, gone: bool) -> None:
        """``gone``: the machine went away, so no connection was closed."""
        for group in self.scenario.members[process.rank]:
            own, size = group.ranks.index(process.rank) if len(group.ranks) < 64 else process.rank, len(group.ranks)
            if len(group.ranks) >= 64 and group.guid != self.scenario.all_ranks.guid:
                own = group.ranks.index(process.rank)
            for place in self._partners(own, size):
                other = self.process(group.ranks[place])
                waits = other.joining or (other.wait is not None and other.wait.group.guid == group.guid)
                if other.lives and waits and not other.stuck and other.rank != process.rank:
                    self._will_lose(other, process, gone=gone)

    def _partners(self, own: int, size: int) -> set[int]:
        """gloo halves and doubles, NCCL's rings have two neighbours."""
        if self.scenario.backend == "gloo":
            near = {own ^ (1 << bit) for bit in range(size.bit_length())}
            return {place for place in near if place < size} | {(own + 1) % size, (own - 1) % size}
        return {(own + 1) % size, (own - 1) % size}

    def _will_lose(self, other: Process, gone_one: Process, *, gone: bool) -> None:
        sockets = self.scenario.backend == "gloo" or self.scenario.network == "Socket" or other.joining
        same_node = self.scenario.host(other.rank) == self.scenario.host(gone_one.rank)
        if sockets and not gone:
            self.later(self.soon(0.002, 0.2), self.lost, other, gone_one.rank)
        elif not same_node and self.scenario.backend == "nccl" and not other.joining:
            at = self.now + RETRIES_S * self.story.chance.uniform(1.0, 1.1)
            self.later(at, self.lost, other, gone_one.rank)

    def lost(self, process: Process, peer: int) -> None:
        """The other end of a connection went away."""
        if not process.lives or process.leaving:
            return
        if self.scenario.backend == "gloo":
            reset = self.story.chance.random() < 0.2
            where = (self.place.address(self.scenario.host(peer)), self.place.port(peer))
            self.raised(process, torch.closed_by_peer(*where, reset=reset), _CALL, "lost")
        elif self.scenario.network == "Socket" or process.joining:
            text = (
                nccl.closed(self.place, peer) if self.story.chance.random() < 0.6 else nccl.peer_lost(self.place, peer)
            )
            self.broken(process, "misc/socket.cc:484", text, "lost")
        elif self.scenario.network == "IB":
            self.broken(process, "transport/net_ib.cc:1295", nccl.completion(self.place, peer, "Recv"), "lost")
        else:
            self.broken(process, "process_err_completion:1012", nccl.ofi_request(), "lost")

    def broken(self, process: Process, where: str, text: str, shows: str) -> None:
        """NCCL warns; torch's watchdog polls it and takes the process down, or set-up raises."""
        if not process.lives or process.leaving:
            return
        rank, scenario, clock = process.rank, self.scenario, self.story.clock(process.rank, self.now)
        self.story.log(rank, self.now, nccl.warn(self.place, rank, clock, where, text), shows)
        wait = process.wait
        if wait is None:
            kind = "remote process exited or there was a network error" if shows == "lost" else "unhandled system error"
            self.raised(process, _nccl_exception(scenario.nccl, kind, text), ("model = DDP(model)",), shows)
            return
        process.leaving = True
        error = torch.async_error(scenario, wait.group, rank, clock, wait.seq, wait.op, wait.numel, text)
        self.story.print(rank, self.now, error.split("\n"), shows)
        self._status(process, clock, wait.seq, process.counts(wait.group.guid), timed_out=False)
        why = error.split("] ", 1)[1].split("\n")[0]
        lines = torch.taking_down(scenario, wait.group, rank, clock, why)
        self.later(self.soon(0.5, 1.5), self._down, process, lines)

    def _down(self, process: Process, lines: list[str]) -> None:
        if process.lives:
            self.story.print(process.rank, self.now, lines)
            self.aborted(process, 0.1)

    # --- launchers

    def agent_noticed(self, host: str, first: Process) -> None:
        """The agent ends the other workers of its node, then tells of the one that it saw first, then ends."""
        if host in self._noticed or host in self.agents_gone or self.ending:
            return
        self._noticed[host] = first.rank
        others = [self.process(rank) for rank in self.scenario.on(host) if self.process(rank).lives]
        for other in others:
            pid = self.place.pid(other.rank)
            self.story.agent(host, self.now, elastic.closing(self.place, host, self.place.clock(host, self.now), pid))
            self.later(self.soon(0.001, 0.02), self.terminate, other)
        waits_s = KILL_WAIT_S if any(other.stuck == "kernel" for other in others) else 0.3
        self.later(self.now + waits_s, self._agent_ends, host)

    def terminate(self, process: Process) -> None:
        """SIGTERM: Python's default is to end at once, without a word."""
        if process.lives and process.stuck != "kernel":
            self.died(process, -15)

    def _agent_ends(self, host: str) -> None:
        first = self._noticed[host]
        for rank in self.scenario.on(host):
            process, clock = self.process(rank), self.place.clock(host, self.now)
            if process.lives:
                self.story.agent(host, self.now, elastic.forced(self.place, host, clock, self.place.pid(rank)))
                self.died(process, -9)
        self.later(self.soon(0.1, 0.3), self._agent_tells, host, first)

    def _agent_tells(self, host: str, first: int) -> None:
        if host in self.agents_gone:
            return
        self.agents_gone.add(host)
        failures = [self._failure(host, rank) for rank in self.scenario.on(host)]
        known = [one for one in failures if one is not None]
        clock = self.place.clock(host, self.now)
        seen = next(one for one in known if one.rank == first)
        self.story.agent(host, self.now, elastic.failed(self.place, host, clock, seen), "exit")
        new = self.scenario.torch >= (2, 9)
        if seen.text is None and not new:
            self.story.agent(host, self.now, elastic.no_error_file(self.place, host, clock, first))
        elif seen.text is not None and new:
            self.story.agent(host, self.now, elastic.copied(self.place, host, clock, first))
        self.story.agent(host, self.now, elastic.table(self.place, host, known), "exit")
        self.later(self.soon(0.2, 0.5), self.task_ended, host, self.scenario.nodes.index(host), 1)

    def _failure(self, host: str, rank: int) -> Failure | None:
        end = self.process(rank).end
        if end is None or not end.code:
            return None
        text = self.story.exceptions.get(rank)
        at = self.place.clock(host, self.now if text is None else end.time)
        return Failure(rank, end.code, at, text)

    def _task_line(self, host: str, task: int, code: int) -> None:
        self.story.srun(self.now, slurm.task_ended(host, task, code))

    def task_ended(self, host: str, task: int, code: int) -> None:
        self.story.srun(self.now, slurm.task_ended(host, task, code))
        if self.scenario.kill_on_bad_exit and not self.ending:
            self.later(self.now + 0.05, self.end_step, "")
        elif self.scenario.launcher == "torchrun" and not self.ending and self._all_gone():
            self.ending = True

    def _all_gone(self) -> bool:
        return all(not process.lives for process in self.story.processes)

    def end_step(self, reason: str) -> None:
        """srun ends all tasks of the step."""
        if self.ending:
            return
        self.ending = True
        self.story.srun(self.now, [slurm.aborted(), slurm.cancelled(self.place, self.now, reason)])
        for host in self.scenario.nodes:
            self.later(self.soon(0.001, 0.1), self._end_tasks, host)

    def _end_tasks(self, host: str) -> None:
        """SIGTERM to all processes of the step on this node, the agent too."""
        ranks = self.scenario.on(host)
        if all(end is not None and end.code is None for end in (self.process(rank).end for rank in ranks)):
            return
        if self.scenario.launcher == "torchrun" and host not in self.agents_gone:
            self.agents_gone.add(host)
            self._agent_is_ended(host)
        for rank in ranks:
            process = self.process(rank)
            if process.lives and process.stuck == "kernel":
                self.later(self.now + KILL_WAIT_S, self.died, process, -9)
            self.terminate(process)

    def _agent_is_ended(self, host: str) -> None:
        clock = self.place.clock(host, self.now)
        lines = [elastic.death_signal(self.place, host, clock)]
        for rank in self.scenario.on(host):
            if self.process(rank).lives:
                lines.append(elastic.closing(self.place, host, clock, self.place.pid(rank)))
        self.story.agent(host, self.now, [*lines, *elastic.signalled(self.place, host)])
        task = self.scenario.nodes.index(host)
        self.later(self.soon(0.2, 0.6), self._task_line, host, task, 1)

    def end_job(self, at: float, how: str) -> None:
        """Cancelled, preempted, or at its limit."""
        self.later(at, self._end_job, how)

    def _end_job(self, how: str) -> None:
        if self.ending:
            return
        self.story.state, self.story.exit = _STATES[how]
        self.story.srun(self.now, slurm.cancelled(self.place, self.now, slurm.ENDS[how], "JOB"))
        self.end_step(slurm.ENDS[how])


_STATES = {
    "cancel": ("CANCELLED", "0:15"),
    "time": ("TIMEOUT", "0:0"),
    "preempt": ("PREEMPTED", "0:0"),
    "requeue": ("REQUEUED", "0:0"),
}


def _nccl_exception(version: tuple[int, int], kind: str, last: str) -> str:
    name = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    if not kind.startswith("remote"):
        name = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
    return (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:93, "
        f"{kind} (run with NCCL_DEBUG=INFO for details), NCCL version {version[0]}.{version[1]}.5\n{name}\n"
        f"Last error:\n{last}"
    )
