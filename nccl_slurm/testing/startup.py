"""The start of a job, and what fails in it. Where something does, no rank comes to its first step."""

from __future__ import annotations

from functools import singledispatch

from nccl_slurm.testing import events
from nccl_slurm.testing.lines import nccl, slurm, torch
from nccl_slurm.testing.march import INIT_S
from nccl_slurm.testing.reactions import Reactions
from nccl_slurm.testing.story import Process, Story

__all__ = ["fail", "open_job"]

_PORT = 29_500
_SETUP = ("dist.init_process_group(backend)",)
_COMM = ("model = DDP(model)",)


def open_job(story: Story, *, done: bool) -> None:
    """Init lines of NCCL; ``done``: it came to an end."""
    if story.scenario.backend != "nccl":
        return
    begun = story.scenario.start + INIT_S - 6.0
    story.log(0, begun, nccl.version(story.place))
    for rank in range(story.scenario.world):
        at = begun + story.chance.random()
        story.log(rank, at, nccl.init(story.place, rank, story.clock(rank, at), done=done))


def fail(play: Reactions, event: events.Event) -> None:
    """All ranks are joining; then the event happens."""
    for process in play.story.processes:
        process.joining = True
    play.later(play.scenario.start + INIT_S - 4.0, _start, event, play)


@singledispatch
def _start(event: events.Event, play: Reactions) -> None:
    raise TypeError(f"{type(event).__name__} needs a step")


def _warned(play: Reactions, process: Process, where: str, text: str, delay_s: float = 1.0) -> None:
    play.later(play.soon(0.05, delay_s), play.broken, process, where, text, "cause")


@_start.register
def _queue_pair(event: events.QueuePairFails, play: Reactions) -> None:
    text = nccl.modify_qp(play.place, event.rank, event.peer)
    _warned(play, play.process(event.rank), "misc/ibvwrap.cc:290", text)


@_start.register
def _refused(event: events.CannotConnect, play: Reactions) -> None:
    """Those whose ring neighbour is on that node."""
    inside = play.scenario.on(event.host)
    for rank in ((inside[0] - 1) % play.scenario.world, (inside[-1] + 1) % play.scenario.world):
        if rank not in inside:
            peer = inside[0] if rank == (inside[0] - 1) % play.scenario.world else inside[-1]
            _warned(play, play.process(rank), "misc/socket.cc:456", nccl.refused(play.place, peer), 2.0)


@_start.register
def _efa_setup(event: events.EfaSetup, play: Reactions) -> None:
    for rank in play.scenario.on(event.host):
        _warned(play, play.process(rank), "find_ofi_provider:543", nccl.ofi_setup())


@_start.register
def _shm(event: events.ShmFull, play: Reactions) -> None:
    for rank in play.scenario.on(event.host):
        _warned(play, play.process(rank), "misc/shmutils.cc:88", nccl.shm_full(play.place, rank))


@_start.register
def _memlock(event: events.LowMemlock, play: Reactions) -> None:
    for rank in play.scenario.on(event.host):
        _warned(play, play.process(rank), "misc/ibvwrap.cc:190", nccl.memlock(play.place))


@_start.register
def _version(event: events.OtherVersion, play: Reactions) -> None:
    """Every rank compares itself with all others and stops at the first that differs."""
    inside = play.scenario.on(event.host)
    own = play.scenario.nccl[0] * 10_000 + play.scenario.nccl[1] * 100 + 5
    major, minor, patch = (int(part) for part in event.version.split("."))
    other = major * 10_000 + minor * 100 + patch
    for process in play.story.processes:
        odd = process.rank in inside
        first = (0 if inside[0] else inside[-1] + 1) if odd else inside[0]
        pair = (process.rank, other, first, own) if odd else (first, other, process.rank, own)
        if odd:
            play.story.log(process.rank, play.now, nccl.version(play.place, event.version))
        if 0 <= first < play.scenario.world:
            _warned(play, process, "init.cc:1290", nccl.versions_differ(*pair), 0.3)


@_start.register
def _store(event: events.StoreFails, play: Reactions) -> None:
    if event.how == "port":
        text = (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            f"port: {_PORT}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        )
        play.raised(play.process(0), text, _SETUP, "cause", joined=False)
    for process in play.story.processes:
        if event.how == "name":
            _unresolved(play, process)
        limit = play.now + play.scenario.timeout_s + play.story.chance.random()
        play.later(limit, _no_master, play, process)


def _unresolved(play: Reactions, process: Process) -> None:
    clock = play.story.clock(process.rank, play.now)
    why = "(gai error: -2 - Name or service not known)"
    text = f"The IPv6 network addresses of (head-node, {_PORT}) cannot be retrieved {why}."
    play.story.print(process.rank, play.now, torch.c10d(play.scenario, clock, "W", "socket", 764, text), "cause")


def _no_master(play: Reactions, process: Process) -> None:
    if not process.lives or process.leaving:
        return
    clock = play.story.clock(process.rank, play.now)
    where = f"({play.scenario.nodes[0]}, {_PORT})"
    limit = f"{play.scenario.timeout_s * 1000:.0f}ms"
    text = f"The client socket has timed out after {limit} while trying to connect to {where}."
    play.story.print(process.rank, play.now, torch.c10d(play.scenario, clock, "E", "socket", 1028, text), "cause")
    play.raised(process, f"torch.distributed.DistNetworkError: {text}", _SETUP, "cause", joined=False)


@_start.register
def _never_joins(event: events.NeverJoins, play: Reactions) -> None:
    """gloo waits for the rank's own key; NCCL's groups count who came."""
    late = play.process(event.rank)
    late.stuck, late.joining = "code", False
    limit_s = play.scenario.timeout_s
    if play.scenario.backend == "gloo":
        keys = f"/default_pg/0//cpu//0/{event.rank}"
        text = f"torch.distributed.DistStoreError: wait timeout after {limit_s * 1000:.0f}ms, keys: {keys}"
    else:
        world = play.scenario.world
        text = (
            f"torch.distributed.DistStoreError: Timed out after {limit_s + 1:.0f} seconds waiting for clients. "
            f"{world - 1}/{world} clients joined."
        )
    for process in play.story.processes:
        if process is not late:
            at = play.now + limit_s + play.story.chance.uniform(0.0, 0.2)
            play.later(at, play.raised, process, text, _SETUP, "named", False)


@_start.register
def _launch(event: events.LaunchFails, play: Reactions) -> None:
    """No task of the step starts; srun tells of the node."""
    play.story.srun(play.now, [slurm.launch_failed(play.place, event.host, event.why), slurm.aborted()])
    play.ending = True
    for process in play.story.processes:
        play.died(process, None)
