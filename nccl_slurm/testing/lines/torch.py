"""torch's C++ lines and Python tracebacks, from 2.1 on; and gloo's, which come as Python exceptions."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.testing.lines import stamp
from nccl_slurm.testing.scenario import DEFAULT_GROUP, Group, Scenario

__all__ = [
    "async_error",
    "c10d",
    "closed_by_peer",
    "fingerprints",
    "gloo_timeout",
    "head",
    "heartbeat",
    "labelled",
    "not_destroyed",
    "status",
    "taking_down",
    "timeout",
    "told",
    "traceback",
    "watchdog",
    "wrong_size",
]

#: Version → line of ProcessGroupNCCL.cpp that reports the time-out, as seen in public logs.
_CPP = {(2, 1): 475, (2, 2): 523, (2, 3): 563, (2, 4): 607, (2, 5): 616, (2, 6): 632}
_CAUSES = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
_STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. "
    "This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be "
    "triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-"
    "prone behaviors."
)
_STUCK_OLD = "Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1"
_GLHF = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
_GLOO = "/pytorch/third_party/gloo/gloo/transport/tcp/"


def labelled(scenario: Scenario, rank: int, text: str) -> str:
    """A line of an uncaught exception: from 2.2 on the excepthook puts the global rank before each."""
    return f"[rank{rank}]: {text}" if scenario.torch >= (2, 2) else text


def traceback(scenario: Scenario, rank: int, last: str, calls: Sequence[str], *, joined: bool = True) -> list[str]:
    """``calls``: the innermost last, as source lines. ``joined``: the process group exists, so the rank is known."""
    lines = ["Traceback (most recent call last):"]
    for number, call in enumerate(("main()", *calls)):
        lines += [
            f'  File "/home/{scenario.user}/train.py", line {40 + 17 * number}, in {_where(number)}',
            f"    {call}",
        ]
    return [labelled(scenario, rank, line) if joined else line for line in (*lines, *last.split("\n"))]


def _where(number: int) -> str:
    return "<module>" if number == 0 else "main" if number == 1 else "step"


def _prefix(scenario: Scenario, rank: int, at: float, severity: str, line: int, file: str = "ProcessGroupNCCL") -> str:
    place = f"{file}.cpp:{line}] "
    if scenario.torch < (2, 2):
        return f"[{severity} {place}"
    if scenario.torch < (2, 4):
        return f"[rank{rank}]:[{severity} {place}"
    return f"[rank{rank}]:[{severity}{stamp.glog(at)} {place}"


def c10d(scenario: Scenario, at: float, severity: str, file: str, line: int, text: str) -> str:
    """Before the rank is known; stamped from 2.4 on."""
    when = f"{severity}{stamp.glog(at)} " if scenario.torch >= (2, 4) else f"{severity} "
    return f"[{when}{file}.cpp:{line}] [c10d] {text}"


def _part(scenario: Scenario, group: Group, rank: int) -> str:
    """The group as this process names it: its number counts the process's own groups, the GUID is shared."""
    own, inside = _number(scenario, group, rank), group.ranks.index(rank)
    if scenario.torch < (2, 3):
        return f"[Rank {inside}]"
    if scenario.torch < (2, 4):
        return f"[PG {own} Rank {inside}]"
    if scenario.torch < (2, 5):
        return f"[PG {own} ({group.name}) Rank {inside}]"
    return f"[PG ID {own} PG GUID {group.guid}({group.name}) Rank {inside}]"


def _number(scenario: Scenario, group: Group, rank: int) -> int:
    if group.guid == DEFAULT_GROUP[0]:
        return 0
    return 1 + [one.guid for one in scenario.members[rank]].index(group.guid)


def head(scenario: Scenario, group: Group, rank: int) -> str:
    """``[Rank 3]``, which newer versions print in the time-out's own line."""
    return f"[Rank {group.ranks.index(rank)}]" if scenario.torch >= (2, 5) else _part(scenario, group, rank)


def watchdog(scenario: Scenario, group: Group, rank: int, seq: int, op: str, numel: int, ran_s: float) -> str:
    work = f"SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)={scenario.timeout_s * 1000:.0f}"
    return (
        f"{head(scenario, group, rank)} Watchdog caught collective operation timeout: WorkNCCL({work}) "
        f"ran for {ran_s * 1000:.0f} milliseconds before timing out."
    )


def timeout(scenario: Scenario, rank: int, at: float, text: str) -> str:
    """The line of `watchdog`."""
    known = max((version for version in _CPP if version <= scenario.torch), default=(2, 1))
    return _prefix(scenario, rank, at, "E", _CPP[known]) + text


def status(
    scenario: Scenario, group: Group, rank: int, at: float, seq: int, counts: tuple[int, int], *, timed_out: bool = True
) -> str | None:
    """``counts``: last enqueued, last completed of this group. None: this version prints no such line."""
    enqueued, completed = counts
    part, torch = _part(scenario, group, rank), scenario.torch
    if torch < (2, 3):
        return None
    if torch >= (2, 6):
        what = f"{part}  failure detected by watchdog at work sequence id: {seq} PG status:"
        text = f"{what} last enqueued work: {enqueued}, last completed work: {completed}"
        return _prefix(scenario, rank, at, "E", 2241) + text
    what = (
        "Timeout at NCCL work" if timed_out else "Exception (either an error or timeout) detected by watchdog at work"
    )
    text = f"{part} {what}: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    return _prefix(scenario, rank, at, "E", 1785) + text


def told(
    scenario: Scenario, rank: int, at: float, counts: tuple[int, int], by: int | None, *, dumps: bool
) -> list[str]:
    """The heartbeat monitor's lines on the signal to dump; ``by`` None: this rank's own watchdog gave it. The counters
    are the default group's, whatever group timed out. Nothing before 2.4."""
    if scenario.torch < (2, 4):
        return []
    part = _part(scenario, scenario.all_ranks, rank)
    first = (
        "First PG on this rank to signal dumping."
        if by is None
        else "Observed flight recorder dump signal from another rank via TCPStore."
    )
    who = "this local rank" if by is None else f" rank {by}"
    received = (
        f"Received a dump signal due to a collective timeout from {who} and we will try our best to dump the debug "
        f"info. Last enqueued NCCL work: {counts[0]}, last completed NCCL work: {counts[1]}.{_CAUSES}"
    )
    texts = [(2732 if by is None else 1922, first), (1987, received)]
    if dumps:
        preparing = "ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1, only active collectives: 0"
        texts.append((1700, preparing))
    return [f"{_prefix(scenario, rank, at, 'E', line)}{part} {text}" for line, text in texts]


def taking_down(scenario: Scenario, group: Group, rank: int, at: float, why: str) -> list[str]:
    """The last words of a process whose watchdog gives up: then SIGABRT."""
    own, part = f"[Rank {group.ranks.index(rank)}]", _part(scenario, group, rank)
    ended = "Process group watchdog thread" if scenario.torch >= (2, 3) else "NCCL watchdog thread"
    some = (
        f"{own} Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data."
    )
    down = f"{own} To avoid data inconsistency, we are taking the entire process down."
    last = f"{part} {ended} terminated with exception: {why}"
    return [
        _prefix(scenario, rank, at, "E", 683) + some,
        _prefix(scenario, rank, at, "E", 689) + down,
        _prefix(scenario, rank, at, "E", 1414) + last,
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {last}",
    ]


def async_error(
    scenario: Scenario, group: Group, rank: int, at: float, seq: int, op: str, numel: int, last: str
) -> str:
    """``last``: NCCL's own last warning, which torch repeats."""
    work = f"SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)={scenario.timeout_s * 1000:.0f}"
    version = f"{scenario.nccl[0]}.{scenario.nccl[1]}.5"
    text = (
        f"[Rank {group.ranks.index(rank)}] Collective WorkNCCL({work}) raised the following async exception: NCCL "
        f"error: remote process exited or there was a network error, NCCL version {version}\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        f"Last error:\n{last}\n"
    )
    return _prefix(scenario, rank, at, "E", 542) + text


def heartbeat(scenario: Scenario, rank: int, at: float) -> list[str]:
    """The monitor ends a process whose watchdog thread is blocked."""
    part = _part(scenario, scenario.all_ranks, rank)
    if scenario.torch < (2, 5):
        return [f"{_prefix(scenario, rank, at, 'F', 1063)}{part} {_STUCK_OLD}"]
    last = "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."
    return [
        f"{_prefix(scenario, rank, at, 'E', 1743)}{part} {_STUCK}",
        f"{_prefix(scenario, rank, at, 'F', 1725)}{part} {last}",
    ]


def not_destroyed(scenario: Scenario, rank: int, at: float) -> str:
    """At every exit without destroy_process_group; means nothing."""
    text = (
        "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For "
        "more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())"
    )
    return _prefix(scenario, rank, at, "W", 1250) + text


def gloo_timeout(scenario: Scenario, *, sends: bool) -> str:
    what, line = ("send", 129) if sends else ("recv", 78)
    return (
        f"RuntimeError: [{_GLOO}unbound_buffer.cc:{line}] Timed out waiting {scenario.timeout_s * 1000:.0f}ms for "
        f"{what} operation to complete"
    )


def closed_by_peer(address: str, port: int, *, reset: bool = False) -> str:
    """``address``, ``port``: the peer's gloo listener."""
    if reset:
        what = f"[{_GLOO}pair.cc:537] Read error [{address}]:{port}: Connection reset by peer. This is typically"
        return f"RuntimeError: {what} caused by a remote worker hanging or bugs in the application. {_GLHF}"
    return (
        f"RuntimeError: [{_GLOO}pair.cc:553] Connection closed by peer [{address}]:{port}. This is typically "
        f"caused by a remote worker crashing. {_GLHF}"
    )


def wrong_size(got: int, expected: int) -> list[str]:
    """gloo aborts the process that gets more bytes than it asked for."""
    return [
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        f"  what():  [enforce fail at {_GLOO}pair.cc:456] op.preamble.length <= op.nbytes. {got} vs {expected}. "
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
    ]


def fingerprints(mine: tuple[int, int, str, int], other: tuple[int, int, str, int]) -> str:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: each side is rank, sequence number, operation, elements."""
    differ = "\t ".join(
        f"{name}: {one}vs {two}"
        for name, one, two in (("Op type", mine[2], other[2]), ("Tensor Tensor shapes", mine[3], other[3]))
        if one != two
    )
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {mine[0]} is running collective: "
        f"{_fingerprint(mine)}, but Rank {other[0]} is running collective: {_fingerprint(other)}."
        f"Collectives differ in the following aspects: \t {differ}"
    )


def _fingerprint(call: tuple[int, int, str, int]) -> str:
    return (
        f"CollectiveFingerPrint(SequenceNumber={call[1]}, OpType={call[2]}, TensorShape=[{call[3]}], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, "
        "layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
        "memory_format=(nullopt)))"
    )
