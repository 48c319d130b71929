"""The part of a script that differs: what each rank does, and what must be seen of it.

Program text is put together from our own lines, from numbers, and from names of closed sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.report.visible import ascii_only
from nccl_slurm.repro.call import Call, scaled
from nccl_slurm.repro.plan import Plan

__all__ = ["BEFORE_THE_GROUP", "CODE", "WITH_A_COLLECTIVE", "Scene", "scene"]

#: Kinds that end before there is a process group.
BEFORE_THE_GROUP = frozenset({"init", "clients", "master", "name", "port"})
#: Kinds in which ranks meet in a collective, so that a monitored barrier can stand before it.
WITH_A_COLLECTIVE = frozenset({"absent", "raise", "exit", "signal", "op", "shape", "dtype", "order"})
_MESSAGE_MAX = 200
#: Exceptions that take one text; any other becomes a RuntimeError that names it.
_EXCEPTIONS = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "EOFError",
        "FileExistsError",
        "FileNotFoundError",
        "FloatingPointError",
        "ImportError",
        "IndexError",
        "KeyError",
        "LookupError",
        "MemoryError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "OSError",
        "OverflowError",
        "PermissionError",
        "RuntimeError",
        "TimeoutError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
    }
)
CODE = {
    "all_reduce": "dist.all_reduce(x)",
    "broadcast": "dist.broadcast(x, src=0)",
    "reduce": "dist.reduce(x, dst=0)",
    "all_gather": "dist.all_gather([torch.empty_like(x) for _ in range(size)], x)",
    "all_gather_into_tensor": "dist.all_gather_into_tensor(x.new_empty([size * x.shape[0], *x.shape[1:]]), x)",
    "reduce_scatter": "dist.reduce_scatter(torch.empty_like(x), [x] * size)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(x.new_empty([x.shape[0] // size, *x.shape[1:]]), x)",
    "all_to_all": "dist.all_to_all([torch.empty_like(x) for _ in range(size)], [x] * size)",
    "all_to_all_single": "dist.all_to_all_single(torch.empty_like(x), x)",
    "gather": "dist.gather(x, [torch.empty_like(x) for _ in range(size)] if rank == 0 else None, dst=0)",
    "scatter": "dist.scatter(x, [x] * size if rank == 0 else None, src=0)",
    "barrier": "dist.barrier()",
    "send": "dist.send(x, dst=(rank + 1) % size)",
    "recv": "dist.recv(x, src=(rank + 1) % size)",
}
_JOIN = "device = join(rank, size, BACKEND, TIMEOUT_S)"
_STAY = "stay_away(TIMEOUT_S)"
_MISMATCH = r"Detected mismatch between collectives on ranks\. Rank {0} is running.*, but Rank {1} is running"


@dataclass(frozen=True)
class Scene:
    """``lines``: body of ``def scene(rank, size)``. ``expected``: rank → patterns that it must print; ``error``: what
    people will read there. ``idle``: ranks that only stay away. ``ends``: exit status of the odd rank, None where it
    does not count. ``called``: the calls as they stand in the script, after scaling.
    """

    odd: int
    what: str
    lines: Sequence[str]
    expected: Mapping[int, Sequence[str]]
    error: str
    idle: frozenset[int] = frozenset()
    ends: int | None = None
    called: Sequence[Call] = ()


def scene(plan: Plan, nproc: int, *, barrier: bool) -> Scene:
    """``nproc`` ranks, 2 or more. ``barrier``: a monitored barrier before the collective."""
    if plan.kind in _BEFORE:
        return _BEFORE[plan.kind](plan, nproc)
    return _AFTER[plan.kind](plan, nproc, barrier and plan.kind in WITH_A_COLLECTIVE)


def part(rank: int | None, nproc: int) -> int:
    """Who plays a rank of the job: its own number where the script has it, else the last one."""
    return rank if rank is not None and 0 <= rank < nproc else nproc - 1


def _witness(odd: int) -> int:
    """Rank 0 is the one to whom torch's monitored barrier tells who is missing."""
    return 0 if odd else 1


def _absence(odd: int) -> tuple[str, str]:
    """What DETAIL's own monitored barrier, and one in the script, print on the witness: pattern, words."""
    if odd:
        words = f"RuntimeError: [Rank 0]: Ranks {odd} failed to pass monitoredBarrier in ... ms"
        return rf"Ranks? {odd} failed to pass monitoredBarrier", words
    pattern = "successfully reached monitoredBarrier, but received errors"
    return pattern, f"RuntimeError: Rank 1 {pattern} while waiting for send/recv from rank 0."


def _call_lines(call: Call) -> list[str]:
    if call.op == "barrier":
        return [CODE["barrier"]]
    made = f"x = torch.ones({list(call.shape or ())}, dtype=torch.{call.dtype}, device=device)"
    return [made, CODE[str(call.op)]]


def _start(barrier: bool) -> list[str]:
    return [_JOIN, *(["gloo = dist.new_group(backend='gloo', timeout=timedelta(seconds=TIMEOUT_S))"] * barrier)]


def _before_call(barrier: bool) -> list[str]:
    return ["dist.monitored_barrier(gloo, timeout=timedelta(seconds=TIMEOUT_S), wait_all_ranks=True)"] * barrier


def _meeting(call: Call, nproc: int, barrier: bool) -> tuple[Call, list[str]]:
    """The collective in which the others stand."""
    if call.op == "monitored_barrier":
        return call, _before_call(True)
    made = scaled(call, nproc)
    return made, [*_before_call(barrier), *_call_lines(made)]


def _gone(plan: Plan, nproc: int, barrier: bool, does: Sequence[str], what: str) -> Scene:
    """The odd rank does something else and never comes."""
    odd = part(plan.rank, nproc)
    call, lines = _meeting(plan.call, nproc, barrier)
    barrier = barrier or plan.call.op == "monitored_barrier"  # which needs its group
    branch = ["if rank == ODD:", *(f"    {line}" for line in does)]
    return Scene(
        odd,
        f"rank {odd} {what}; the others enter {call} and wait for it",
        [*_start(barrier), *branch, *lines],
        {_witness(odd): [_absence(odd)[0]]},
        _absence(odd)[1],
        called=(call,),
    )


def _absent(plan: Plan, nproc: int, barrier: bool) -> Scene:
    made = _gone(plan, nproc, barrier, [_STAY, "return"], "never enters the collective")
    return replace(made, idle=frozenset({made.odd}))


def _raise(plan: Plan, nproc: int, barrier: bool) -> Scene:
    name, message = plan.error
    bare = name.rpartition(".")[2]
    known = bare if name == bare and bare in _EXCEPTIONS else "RuntimeError"
    text = ascii_only(message if known == name else f"{name}: {message}")[:_MESSAGE_MAX]
    made = _gone(plan, nproc, barrier, [f"raise {known}({text!r})"], f"raises {known} before the collective")
    return replace(
        made, expected={**made.expected, made.odd: [rf"^{known}\b"]}, error=f"{known}: {text}; then {made.error}"
    )


def _exit(plan: Plan, nproc: int, barrier: bool) -> Scene:
    does = [f"os._exit({plan.status})"]
    made = _gone(plan, nproc, barrier, does, f"ends with exit status {plan.status} before the collective")
    return replace(made, ends=plan.status)


def _signal(plan: Plan, nproc: int, barrier: bool) -> Scene:
    """Without a core dump: the signal is sent by the rank itself, there is nothing in it to look at."""
    number = -plan.status
    default = [] if number in _UNCATCHABLE else ["import signal", f"signal.signal({number}, signal.SIG_DFL)"]
    core = ["import resource", "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"]
    does = [*core, *default, f"os.kill(os.getpid(), {number})"]
    made = _gone(plan, nproc, barrier, does, f"ends by signal {number} before the collective")
    return replace(made, ends=plan.status)


def _unlike(plan: Plan, nproc: int, barrier: bool) -> Scene:
    odd = part(plan.rank, nproc)
    call, other = _apart(plan, nproc)
    lines = ["if rank == ODD:", *_indented(_call_lines(other)), "else:", *_indented(_call_lines(call))]
    return Scene(
        odd,
        f"rank {odd} issues {other}, the others {call}",
        [*_start(barrier), *_before_call(barrier), *lines],
        {_witness(odd): [_MISMATCH.format(_witness(odd), odd), _ASPECT[plan.kind]]},
        _mismatch(odd, _ASPECT[plan.kind]),
        called=(call, other),
    )


def _order(plan: Plan, nproc: int, barrier: bool) -> Scene:
    odd = part(plan.rank, nproc)
    call, other = _apart(plan, nproc)
    first, second = _call_lines(call), _call_lines(other)
    lines = ["if rank == ODD:", *_indented([*second, *first]), "else:", *_indented([*first, *second])]
    aspect = _ASPECT["op" if call.op != other.op else "shape"]
    return Scene(
        odd,
        f"rank {odd} issues {other} first and then {call}; the others the other way round",
        [*_start(barrier), *_before_call(barrier), *lines],
        {_witness(odd): [_MISMATCH.format(_witness(odd), odd), aspect]},
        _mismatch(odd, aspect),
        called=(call, other),
    )


def _mismatch(odd: int, aspect: str) -> str:
    sides = f"Rank {_witness(odd)} is running collective: ..., but Rank {odd} is running collective: ..."
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. {sides} "
        f"Collectives differ in the following aspects: ... {aspect} ..."
    )


def _apart(plan: Plan, nproc: int) -> tuple[Call, Call]:
    """Both sides scaled; where that made them equal the odd one gets a longer first dimension."""
    call, other = scaled(plan.call, nproc), scaled(plan.other, nproc)
    if call == other and other.shape:
        other = scaled(Call(other.op, (other.shape[0] + nproc, *other.shape[1:]), other.dtype), nproc)
    return call, other


def _p2p(plan: Plan, nproc: int, barrier: bool) -> Scene:
    odd = part(plan.rank, nproc)
    call = scaled(plan.call, nproc)
    other = (odd + 1) % nproc
    pattern = rf"Timed out waiting \d+ms for {call.op} operation|{_NCCL_WAITS}"
    return Scene(
        odd,
        f"rank {odd} waits in {call} for rank {other}, which never answers",
        [_JOIN, "if rank != ODD:", f"    {_STAY}", "    return", *_call_lines(call)],
        {odd: [pattern]},
        f"Timed out waiting ... ms for {call.op} operation to complete (gloo), Watchdog caught collective operation "
        "timeout: ... (NCCL)",
        idle=frozenset(range(nproc)) - {odd},
        called=(call,),
    )


def _ddp(plan: Plan, nproc: int, barrier: bool) -> Scene:
    odd = part(plan.rank, nproc)
    usual, own = plan.parameters
    witness = _witness(odd)
    pattern = f"Rank {witness} has {usual} params, while rank {odd} has inconsistent {own} params"
    lines = [
        f"count = {own} if rank == ODD else {usual}",
        "weights = [torch.nn.Parameter(torch.ones(1, device=device)) for _ in range(count)]",
        "torch.nn.parallel.DistributedDataParallel(torch.nn.ParameterList(weights))",
    ]
    what = f"rank {odd} wraps a model of {own} parameters in DistributedDataParallel, the others one of {usual}"
    words = f"RuntimeError: DDP expects same model across all ranks, but {pattern}."
    return Scene(odd, what, [_JOIN, *lines], {witness: [pattern]}, words)


def _init(plan: Plan, nproc: int) -> Scene:
    odd = part(plan.rank, nproc)
    lines = ["store = meet(rank, size)", "if rank == ODD:", f"    {_STAY}", "    return", f"{_JOIN[:-1]}, store)"]
    what = f"rank {odd} never makes the process group; the others wait for its key in the store"
    words = f"DistStoreError: wait timeout after ... ms, keys: /default_pg/0//.../{odd}"
    return Scene(
        odd, what, lines, {_witness(odd): [r"wait timeout after \d+ms, keys: /default_pg/"]}, words, frozenset({odd})
    )


def _alone(nproc: int, speaker: int, what: str, does: str, pattern: str, words: str) -> Scene:
    """One rank is enough to show it; the others stay away."""
    lines = [f"if rank != {speaker}:", f"    {_STAY}", "    return", *does.splitlines()]
    return Scene(nproc - 1, what, lines, {speaker: [pattern]}, words, frozenset(range(nproc)) - {speaker})


def _clients(plan: Plan, nproc: int) -> Scene:
    does = f"dist.TCPStore('127.0.0.1', free_port(), size, True, {_WITHIN})"
    what = "rank 0 opens the store and waits for all ranks; no other one comes"
    pattern = r"Timed out after \d+ seconds waiting for (?:clients|workers)\. \d+/\d+ "
    words = f"DistStoreError: Timed out after ... seconds waiting for clients. 1/{nproc} clients joined."
    return _alone(nproc, 0, what, does, pattern, words)


def _master(plan: Plan, nproc: int) -> Scene:
    does = f"dist.TCPStore('127.0.0.1', free_port(), size, False, {_WITHIN})"
    what = "rank 1 looks for the store of rank 0, which never opened it"
    words = (
        "DistNetworkError: The client socket has timed out after ... ms while trying to connect to (127.0.0.1, ...)."
    )
    return _alone(nproc, 1, what, does, _CLIENT, words)


def _unresolved(plan: Plan, nproc: int) -> Scene:
    does = f"dist.TCPStore('no-such-host.invalid', 29500, size, False, {_WITHIN})"
    what = "rank 1 looks for the store at a name that does not resolve"
    words = (
        "DistNetworkError: The client socket has timed out ... while trying to connect to (no-such-host.invalid, ...)."
    )
    return _alone(nproc, 1, what, does, rf"{_CLIENT}.*no-such-host\.invalid", words)


def _port(plan: Plan, nproc: int) -> Scene:
    does = f"""\
taken = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
taken.bind(('', 0))
taken.listen()
dist.TCPStore('127.0.0.1', taken.getsockname()[1], size, True, {_WITHIN})"""
    what = "rank 0 opens the store on a port that something else holds"
    words = "DistNetworkError: The server socket has failed to listen on any local network address. ... EADDRINUSE ..."
    return _alone(nproc, 0, what, does, r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|in use)", words)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


#: Sockets of two ranks are made at their first send or receive, so the wait may already end there.
_NCCL_WAITS = "Watchdog caught collective operation timeout|retrieving ncclUniqueId from"
_CLIENT = "client socket has (?:timed out|failed to connect)"
_WITHIN = "timeout=timedelta(seconds=TIMEOUT_S)"
_UNCATCHABLE = (9, 19)
_ASPECT = {"op": "Op type:", "shape": "Tensor shapes:", "dtype": "Tensor dtypes:"}
_AFTER: Mapping[str, Callable[[Plan, int, bool], Scene]] = {
    "absent": _absent,
    "raise": _raise,
    "exit": _exit,
    "signal": _signal,
    "op": _unlike,
    "shape": _unlike,
    "dtype": _unlike,
    "order": _order,
    "p2p": _p2p,
    "ddp": _ddp,
}
_BEFORE: Mapping[str, Callable[[Plan, int], Scene]] = {
    "init": _init,
    "clients": _clients,
    "master": _master,
    "name": _unresolved,
    "port": _port,
}
