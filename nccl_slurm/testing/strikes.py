"""What each event does at its moment: the cause itself. What follows from it is `reactions`."""

from __future__ import annotations

from functools import singledispatch

from nccl_slurm.testing import events
from nccl_slurm.testing.lines import kernel, nccl, slurm, torch
from nccl_slurm.testing.reactions import HEARTBEAT_S, RETRIES_S, SLURMD_TIMEOUT_S, Reactions
from nccl_slurm.testing.story import End, Line

__all__ = ["act"]


@singledispatch
def act(event: events.Event, play: Reactions) -> None:
    """Nothing for events that only hold a rank: its peers' clocks do the rest."""


@act.register
def _raise(event: events.Raise, play: Reactions) -> None:
    play.raised(play.process(event.rank), event.text, ("loss = step(batch)",), "cause")


@act.register
def _crash(event: events.Crash, play: Reactions) -> None:
    play.died(play.process(event.rank), -event.signal)


@act.register
def _exit(event: events.Exit, play: Reactions) -> None:
    play.died(play.process(event.rank), event.code)


@act.register
def _heartbeat(event: events.BlockWatchdog, play: Reactions) -> None:
    play.later(play.now + HEARTBEAT_S, play.heartbeat, play.process(event.rank))


@act.register
def _out_of_memory(event: events.HostOutOfMemory, play: Reactions) -> None:
    host = play.scenario.host(event.rank)
    for text in kernel.oom(play.place, event.rank):
        play.story.kernel[host].append(_kernel_line(play.now, text))
    play.story.state, play.story.exit = "OUT_OF_MEMORY", "0:125"
    play.died(play.process(event.rank), -9)
    play.later(play.now + 3.0, _oom_line, play)


def _oom_line(play: Reactions) -> None:
    play.story.srun(play.now, slurm.oom(play.place))


def _kernel_line(at: float, text: str) -> Line:
    return Line(at, text, "cause")


@act.register
def _xid(event: events.Xid, play: Reactions) -> None:
    host = play.scenario.host(event.rank)
    play.story.kernel[host].append(_kernel_line(play.now, kernel.xid(play.place, event.rank, event.number)))
    text = _CUDA.get(event.kind or "")
    if text is not None:
        process = play.process(event.rank)
        process.stuck = None
        play.later(play.soon(0.01, 0.2), play.raised, process, text, ("loss.backward()",), "cause")


#: What CUDA tells a program whose GPU did this; with a lost GPU calls do not return.
_CUDA = {
    "gpu-app-fault": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "gpu-hw-ecc": "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    "nvlink-fabric": "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
}


@act.register
def _node_fails(event: events.NodeFails, play: Reactions) -> None:
    if event.host in play.story.failed_nodes:
        return
    play.story.failed_nodes[event.host] = play.now + SLURMD_TIMEOUT_S
    for rank in play.scenario.on(event.host):
        play.died(play.process(rank), None)
    play.agents_gone.add(event.host)
    play.later(play.now + SLURMD_TIMEOUT_S, _slurm_sees, play, event.host)


def _slurm_sees(play: Reactions, host: str) -> None:
    play.story.state, play.story.exit = "NODE_FAIL", "1:0"
    play.story.srun(play.now, slurm.node_failed(play.place, host, play.now))
    play.end_step(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")


@act.register
def _storage(event: events.StorageStalls, play: Reactions) -> None:
    """The kernel complains after 100 and 120 seconds, once a node."""
    if any("Lustre" in line.text for line in play.story.kernel[event.host]):
        return
    at, pid = play.now + 100.0, play.place.pid(play.scenario.on(event.host)[0])
    lines = [_kernel_line(at, kernel.storage(at)), _kernel_line(at + 20.0, kernel.hung_task(pid))]
    play.story.kernel[event.host] += lines


@act.register
def _link_down(event: events.LinkDown, play: Reactions) -> None:
    play.story.kernel[event.host].append(_kernel_line(play.now, kernel.link_down(event.device)))
    for rank in play.scenario.on(event.host):
        clock = play.story.clock(rank, play.now)
        text = nccl.port_error(play.place, event.device)
        play.story.log(rank, play.now, nccl.warn(play.place, rank, clock, "transport/net_ib.cc:117", text), "cause")
        for peer in ((rank + 1) % play.scenario.world, (rank - 1) % play.scenario.world):
            if play.scenario.host(peer) != event.host:
                _path_fails(play, rank, peer)


@act.register
def _path_breaks(event: events.PathBreaks, play: Reactions) -> None:
    _path_fails(play, event.rank, event.peer)


def _path_fails(play: Reactions, rank: int, peer: int) -> None:
    for one, other, way in ((rank, peer, "Send"), (peer, rank, "Recv")):
        text = nccl.completion(play.place, other, way)
        at = play.now + RETRIES_S * play.story.chance.uniform(1.0, 1.05)
        where = "transport/net_ib.cc:1295"
        play.later(at, play.broken, play.process(one), where, text, "cause")


@act.register
def _efa(event: events.EfaError, play: Reactions) -> None:
    for rank in (event.rank, event.peer):
        at = play.soon(5.0, 30.0)
        where = "process_err_completion:1012"
        play.later(at, play.broken, play.process(rank), where, nccl.ofi_request(), "cause")


@act.register
def _mismatch(event: events.Mismatch, play: Reactions) -> None:
    """NCCL: nothing; gloo compares where it was asked to, else the one that gets too much aborts."""
    process = play.process(event.rank)
    wait = process.wait
    if wait is None or (play.scenario.backend == "nccl" and not play.scenario.detail):
        return
    if play.scenario.detail:
        _compared(play, event, wait.seq)
    elif event.op == "ALLREDUCE":
        victim = play.process((event.rank + 1) % play.scenario.world)
        got, expected = sorted((event.numel * 4, (1 << 20) * 4), reverse=True)
        play.story.print(victim.rank, play.now, torch.wrong_size(got, expected), "cause")
        play.aborted(victim, 0.2)


def _compared(play: Reactions, event: events.Mismatch, seq: int) -> None:
    """Each rank compares with the first one that differs: the good ones name the odd one, that one names rank 0."""
    good = (seq, "ALLREDUCE", 1 << 20)
    odd = (event.rank, seq, event.op, event.numel)
    for process in play.story.processes:
        mine = odd if process.rank == event.rank else (process.rank, *good)
        other = odd if process.rank != event.rank else (0 if event.rank else 1, *good)
        text = torch.fingerprints(mine, other)
        at = play.soon(0.05, 0.15)
        call = ("dist.all_reduce(gradient)",)
        play.later(at, play.raised, process, text, call, "odd")


@act.register
def _cancel(event: events.Cancel, play: Reactions) -> None:
    play.end_job(play.now, event.how)


@act.register
def _script_fails(event: events.ScriptFails, play: Reactions) -> None:
    """The batch script's end takes the step along."""
    play.story.state, play.story.exit = "FAILED", "1:0"
    play.ending = True
    for process in play.story.processes:
        if process.lives:
            process.end = End(play.now, -9)
