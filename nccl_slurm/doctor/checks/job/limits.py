"""Limits of the ranks' own processes, against what RDMA and large jobs need, and compared rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nccl_slurm.doctor.check import Finding, Priority, Status
from nccl_slurm.doctor.checks.job.asked import SHOWN, JobCheck, proof
from nccl_slurm.doctor.checks.job.fabric import SOURCES, rdma_nodes
from nccl_slurm.doctor.checks.job.ranks import Ranks, Seen, about, programs, ranks, unseen, whose, whose_nodes
from nccl_slurm.doctor.observation import JobObserved
from nccl_slurm.doctor.read.procfs import UNLIMITED
from nccl_slurm.doctor.table import table
from nccl_slurm.info.split import split

__all__ = ["CHECKS", "ID"]

ID = "job.limits"
_LOCKED, _STACK, _FILES = "Max locked memory", "Max stack size", "Max open files"
_PROCESSES = "Max processes"
#: Threads of 16 ranks with data loaders, many times.
_PROCESSES_ENOUGH = 1 << 17
_COMPARED = (_LOCKED, _STACK, _FILES, _PROCESSES, "Max address space", "Max resident set")
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
#: Beside the connections to ranks: libraries, data, logs.
_FILES_BESIDE = 1024
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class _Low:
    """A process below a bound. ``value``: what it has."""

    seen: Seen
    value: float


def judge(observed: JobObserved) -> Iterator[Finding]:
    found = ranks(observed)
    read = [one for one in found.seen if one.limits]
    if not read:
        yield Finding(ID, "UNKNOWN", "the limits of no rank could be read", nodes=whose_nodes(found.seen))
        return
    low = [*_locked(observed, read), *_stack(read), *_files(read)]
    wrong = [*low, *(one for members in programs(read) for one in _differences(members, low))]
    yield from wrong
    yield from unseen(ID, _without(found, read))
    if not wrong:
        each = ", within each program" if any(_differences(read, low)) else f": {_told(read[0])}"
        yield Finding(ID, "PASS", f"{len(read)} ranks have the same limits{each}")


def _without(found: Ranks, read: Sequence[Seen]) -> Ranks:
    """Nodes whose ranks were seen and whose limits were not."""
    silent = {one.node: "their limits could not be read" for one in found.seen}
    known = {one.node for one in read}
    return Ranks(read, {**found.unseen, **{node: why for node, why in silent.items() if node not in known}}, found.more)


def _locked(observed: JobObserved, read: Sequence[Seen]) -> Iterator[Finding]:
    """Only RDMA needs locked memory, and root's processes have no such limit (CAP_IPC_LOCK)."""
    fabric = rdma_nodes(observed)
    nodes = {node for node, adapters in fabric.items() if adapters}
    ours = [one for one in read if one.node in nodes and one.uid != 0]
    has = [_Low(one, one.limits[_LOCKED].soft) for one in ours if _LOCKED in one.limits]
    least, enough = table()["memlock-least-mib"] * _MIB, table()["memlock-gib"] * _GIB
    failing = [one for one in has if one.value < least]
    warning = [one for one in has if least <= one.value < enough]
    if failing:
        text = f"{_least(failing)} of locked memory are too little to register memory for RDMA"
        yield _finding("FAIL", "P0", _LOCKED, text, failing)
    if warning:
        text = f"{_least(warning)} of locked memory may be too little to register memory for RDMA"
        yield _finding("WARN", "P1", _LOCKED, text, warning)


def _stack(read: Sequence[Seen]) -> Iterator[Finding]:
    least = table()["stack-least-kib"] * _KIB
    low = [_Low(one, one.limits[_STACK].soft) for one in read if _STACK in one.limits]
    low = [one for one in low if one.value < least]
    if low:
        yield _finding("FAIL", "P1", _STACK, f"a stack of {_least(low)} is below {_amount(least)}", low)


def _files(read: Sequence[Seen]) -> Iterator[Finding]:
    """NCCL raises its own soft limit to the hard one, and rank 0 has a connection to every rank at start."""
    size = max((one.world or 0 for one in read), default=0)
    enough, least = size + _FILES_BESIDE, table()["nofile-least"]
    hard = [_Low(one, one.limits[_FILES].hard) for one in read if _FILES in one.limits]
    few = [one for one in hard if one.value < least]
    tight = [one for one in hard if least <= one.value < enough]
    if few:
        text = f"no more than {_lowest(few)} files may be open (hard limit), below {least:g}"
        yield _finding("FAIL", "P1", _FILES, text, few)
    if tight:
        text = (
            f"no more than {_lowest(tight)} files may be open (hard limit); {size} ranks may need {enough}, one for "
            f"each of them and {_FILES_BESIDE} for libraries, data and logs"
        )
        yield _finding("WARN", "P1", _FILES, text, tight)


def _lowest(low: Sequence[_Low]) -> str:
    return _amount(min(one.value for one in low), "")


def _least(low: Sequence[_Low]) -> str:
    return _amount(min(one.value for one in low))


def _finding(status: Status, priority: Priority, name: str, text: str, low: Sequence[_Low]) -> Finding:
    processes = [one.seen for one in low]
    lines = [proof(one.node, one.pid, "limits", _line(one, name)) for one in processes[:SHOWN]]
    return Finding(
        ID,
        status,
        f"{text}: {whose(processes)}",
        priority,
        nodes=whose_nodes(processes),
        proofs=lines,
        values=about(name, processes[0]),
    )


def _differences(read: Sequence[Seen], low: Sequence[Finding]) -> Iterator[Finding]:
    """Of those whose limit is not told as too low: that it differs from the others' is no news."""
    by_place = dict(enumerate(read))
    for name in _COMPARED:
        low_on = {node for one in low if one.values["name"] == name for node in one.nodes}
        said = (
            (at, _worth(name, one)) for at, one in by_place.items() if name in one.limits and one.node not in low_on
        )
        found = split(said)
        if found is None:
            continue
        groups = [(value, [by_place[int(at)] for at in places]) for value, places in found.values.items()]
        odd = [by_place[int(at)] for at in found.odd]
        told = ", ".join(f"{value} on {whose(ones)}" for value, ones in groups[:4])
        yield Finding(
            ID,
            "WARN",
            f"{name} differs between ranks: {told}",
            "P1",
            nodes=whose_nodes(odd),
            proofs=[proof(ones[0].node, ones[0].pid, "limits", _line(ones[0], name)) for _, ones in groups[:SHOWN]],
            values=about(name, (odd or read)[0]),
        )


def _worth(name: str, one: Seen) -> str:
    """The kernel's own limit of processes goes by the memory of the node, and so is another one on each: of large ones
    none is too few."""
    value = one.limits[name].soft
    return "enough" if name == _PROCESSES and value >= _PROCESSES_ENOUGH else _amount(value, _unit(name))


def _unit(name: str) -> str:
    return "" if name in (_FILES, _PROCESSES) else "B"


def _told(one: Seen) -> str:
    known = [(name, one.limits[name].soft) for name in (_LOCKED, _STACK, _FILES) if name in one.limits]
    return ", ".join(f"{name.removeprefix('Max ')} {_amount(value, _unit(name))}" for name, value in known)


def _line(one: Seen, name: str) -> str:
    has = one.limits[name]
    return f"{name} {_amount(has.soft, _unit(name))} (soft), {_amount(has.hard, _unit(name))} (hard)"


def _amount(value: float, unit: str = "B") -> str:
    if value == UNLIMITED:
        return "unlimited"
    size, word = next(((size, word) for size, word in _UNITS if unit and value >= size), (1, unit))
    return f"{value / size:.4g} {word}".strip() if unit else f"{value:.0f}"


CHECKS: Iterable[JobCheck] = (
    JobCheck(
        ID,
        "Ranks have the same limits, and large ones",
        ("ranks", *SOURCES),
        judge,
        explains=("node.memlock", "node.stack", "node.nofile"),
    ),
)
