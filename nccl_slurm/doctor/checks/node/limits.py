"""Limits and memory that ranks get: from the ranks themselves, else from slurmd, which hands its own to them.

A shell's limits are no matter: those of a login or of an agent's shell differ from a job's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.checks.node.machine import PCI_SOURCES, RDMA_SOURCES
from nccl_slurm.doctor.read import procfs
from nccl_slurm.doctor.read.procfs import UNLIMITED
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS"]

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_SHM = "/dev/shm"  # noqa: S108 # its room is what is asked
_LIMITS_OF = ("slurmd", "slurmstepd")
#: A file that young may be in the making.
_YOUNG_S = 300.0
_SOURCES = ("ranks", "daemons")


class _Has(NamedTuple):
    """A limit of one process. ``values``: for commands that look at it."""

    whose: str
    value: float
    proof: Proof
    values: Mapping[str, str]


def _limit(look: Look, name: str, *, own: bool = True, hard: bool = False) -> list[_Has]:
    """Soft or hard, of every rank; where none runs, of what starts them. ``own``: root's too. Raises where ranks run
    that can't be looked at: what slurmd has is not what they got."""
    rows = [("rank", row) for row in machine.ranks(look.seen)]
    if not rows:
        daemons = machine.rows(look.seen.reader("daemons"))
        rows += [(comm, row) for comm in _LIMITS_OF for row in daemons if row.get("comm") == comm][:1]
    found = []
    for whose, row in rows:
        if whose == "rank" and not own and row.get("uid") == 0:
            continue
        limits = procfs.limits(str(row.get("limits", "")))
        if name in limits:
            value = limits[name].hard if hard else limits[name].soft
            words = f"{name}: {_shown(value)} ({'hard, ' if hard else ''}{whose})"
            proof = Proof(f"/proc/{row.get('pid')}/limits", words)
            found.append(_Has(whose, value, proof, machine.step(row) if whose == "rank" else {}))
    if not found:
        raise NotObserved(f"{name.lower()}: no rank runs here whose limits can be read, and no slurmd")
    return found


def _shown(value: float) -> str:
    return "unlimited" if value == UNLIMITED else f"{value:.0f}"


def _lowest(look: Look, name: str, *, own: bool = True, hard: bool = False) -> _Has:
    return min(_limit(look, name, own=own, hard=hard), key=lambda one: one.value)


def _memlock(look: Look) -> Iterator[Finding]:
    """RDMA cards want the memory that they reach locked; CUDA's own pinned memory is not counted."""
    if _has_no_card(look):
        yield look.not_applicable("no RDMA card is here for which memory is locked")
        return
    ours = [row for row in machine.ranks(look.seen) if row.get("uid") != 0]
    if not ours and machine.ranks(look.seen):
        yield look.passed("ranks of root may lock all memory (CAP_IPC_LOCK)")
        return
    whose, value, proof, values = _lowest(look, "Max locked memory", own=False)
    if value < table()["memlock-least-mib"] * _MIB:
        text = f"locked memory of a {whose} is limited so low that RDMA can't register buffers"
        yield look.fail("P0", text, proof, values=values)
    elif value < table()["memlock-gib"] * _GIB:
        text = f"locked memory of a {whose} is below {table()['memlock-gib']:g} GiB"
        yield look.warn("P1", text, proof, values=values)
    else:
        yield look.passed(f"locked memory of a {whose}: enough", proof)


def _has_no_card(look: Look) -> bool:
    try:
        return not machine.devices(look.seen) and not machine.rdma_on_bus(look.seen)
    except NotObserved:
        return False


def _stack(look: Look) -> Iterator[Finding]:
    """Unlimited is no large stack: glibc then gives each thread 2 MiB on x86-64 (pthread_create(3)). Slurm's own unit
    of slurmd has it so, and what ranks get may differ (PropagateResourceLimits): only theirs counts."""
    whose, value, proof, values = _lowest(look, "Max stack size")
    if value < table()["stack-least-kib"] * _KIB:
        text = f"the stack of a {whose} is below {table()['stack-least-kib']:g} KiB"
        yield look.fail("P1", text, proof, values=values)
        return
    without = [one for one in _limit(look, "Max stack size") if one.value == UNLIMITED and one.whose == "rank"]
    if without:
        text = f"the stack of a {whose} is unlimited: threads get 2 MiB each"
        yield look.warn("P2", text, *(one.proof for one in without), values=without[0].values)
    else:
        yield look.passed(f"the stack of a {whose}: enough", proof)


def _nofile(look: Look) -> Iterator[Finding]:
    """Slurm hands on the soft limit of the shell that submits, 1024 as a rule; a program may raise it to the hard one,
    and NCCL does. Others, as data loaders, don't."""
    whose, value, proof, values = _lowest(look, "Max open files")
    hard = _lowest(look, "Max open files", hard=True)
    least = table()["nofile-least"]
    if hard.value < least:
        text = f"a {whose} may open fewer than {least:g} files"
        yield look.fail("P1", text, hard.proof, values=hard.values)
    elif value < least:
        text = f"a {whose} may open fewer than {least:g} files until it raises its limit itself, as NCCL does"
        yield look.warn("P2", text, proof, hard.proof, values=values)
    elif value < table()["nofile"]:
        text = f"a {whose} may open fewer than {table()['nofile']:g} files: too few for many peers"
        yield look.warn("P2", text, proof, values=values)
    else:
        yield look.passed(f"open files of a {whose}: enough", proof)


# shared memory


def _shared(look: Look) -> Iterator[Finding]:
    """Of a rank whose own can't be read the node's tells nothing."""
    ranks = machine.ranks(look.seen)
    closed = [f"/proc/{row.get('pid')}/root{_SHM}" for row in ranks if not isinstance(row.get("shm"), dict)]
    if closed:
        yield look.unknown(f"{_SHM} of ranks can't be read", *(Proof(f"df {where}", "not read") for where in closed))
    if len(closed) < len(ranks) or not ranks:
        yield from _shm(look)


def _shm(look: Look) -> Iterator[Finding]:
    """That of the ranks, which may be a container's own, else the node's."""
    rows = [row for row in machine.ranks(look.seen) if isinstance(row.get("shm"), dict)]
    rooms = [(f"/proc/{row.get('pid')}/root/dev/shm", row["shm"], machine.step(row)) for row in rows]
    if not rooms:
        room = machine.fields(machine.reader(look.seen, "mounts").get("room")).get(_SHM)
        if not isinstance(room, dict):
            raise NotObserved(f"{_SHM} is not there, or can't be read")
        rooms = [(_SHM, room, {})]
    where, room, values = min(rooms, key=lambda one: _number(one[1], "size"))
    yield from _room(look, where, _number(room, "size"), _number(room, "free"), values)
    yield from _kind(look)


def _room(look: Look, where: str, size: float, free: float, values: Mapping[str, str]) -> Iterator[Finding]:
    used = 1.0 - free / size if size else 1.0
    proof = Proof(f"df {where}", f"{size / _GIB:.1f} GiB, {used:.0%} in use")
    whose = f"{_SHM}{'' if where == _SHM else ' of a rank'}"
    if size < table()["shm-least-gib"] * _GIB:
        yield look.fail("P0", f"{whose} is smaller than {table()['shm-least-gib']:g} GiB", proof, values=values)
    elif used >= table()["shm-used-share"]:
        yield look.warn("P1", f"{whose} is nearly full", proof, values=values)
    elif size < table()["shm-gib"] * _GIB:
        yield look.warn("P1", f"{whose} is smaller than {table()['shm-gib']:g} GiB", proof, values=values)
    else:
        yield look.passed(f"{whose} has room", proof)


def _kind(look: Look) -> Iterator[Finding]:
    try:
        told = look.seen.reader("mounts")
        rows = [row for row in told["table"] if isinstance(row, list) and len(row) > 2 and row[1] == _SHM]
    except (NotObserved, KeyError, TypeError):
        return
    if rows and rows[-1][2] != "tmpfs":
        yield look.warn("P1", f"{_SHM} is no tmpfs", Proof("/proc/mounts", " ".join(map(str, rows[-1]))[:200]))


def _number(room: Mapping[str, Any], key: str) -> float:
    value = room.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _stale(look: Look) -> Iterator[Finding]:
    """Files of NCCL that no process has mapped: left by ranks that were killed. Those of a running job are none."""
    told = machine.reader(look.seen, "shm-files")
    mine = [row for row in machine.rows(told.get("files")) if "/nccl-" in str(row.get("path"))]
    left = [row for row in mine if not row.get("holders") and look.seen.at - _number(row, "mtime") > _YOUNG_S]
    if left and told.get("hidden"):
        raise NotObserved(f"files of NCCL may be left over: {str(told['hidden'])[:300]}")
    if left and told.get("unreadable"):
        proof = Proof("ls /dev/shm", f"{len(left)} files that no process that can be seen has mapped")
        yield look.unknown("files of NCCL may be left over: processes of other users can't be looked at", proof)
    elif left:
        proofs = [Proof("ls -l", f"{row.get('path')} uid {row.get('uid')} {row.get('size')} bytes") for row in left]
        size = sum(_number(row, "size") for row in left)
        text = "files of NCCL are left in /dev/shm by ranks that are gone"
        yield look.warn("P2", text, *proofs, count=str(len(left)), mib=f"{size / _MIB:.0f}")
    else:
        yield look.passed("no files of NCCL are left over in /dev/shm", Proof("ls /dev/shm", f"{len(mine)} in use"))


def _huge(look: Look) -> Iterator[Finding]:
    """EFA's provider takes huge pages for its buffers where there are some, and ordinary ones where not."""
    if not any(one.efa for one in machine.devices(look.seen)):
        yield look.not_applicable("no EFA card is here")
        return
    pages = procfs.meminfo(look.seen.text("memory"))
    total, free = pages.get("HugePages_Total"), pages.get("HugePages_Free")
    if total is None or free is None:
        raise NotObserved("/proc/meminfo tells no huge pages")
    proof = Proof("/proc/meminfo", f"HugePages_Total {total}, HugePages_Free {free}")
    if total and not free:
        yield look.warn("P2", "all huge pages are taken: EFA falls back to ordinary ones", proof)
    elif not total and not any(
        "FI_EFA_USE_HUGE_PAGE" in machine.fields(row.get("environment")) for row in machine.ranks(look.seen)
    ):
        yield look.warn("P2", "there are no huge pages: EFA's buffers take ordinary ones", proof)
    else:
        yield look.passed("huge pages are free", proof)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck("node.shm", "Shared memory has room", ("ranks", "mounts"), _shared),
    NodeCheck("node.stale-shm", "No files of dead ranks in shared memory", ("shm-files",), _stale),
    NodeCheck(
        "node.memlock",
        "Ranks may lock enough memory",
        (*_SOURCES, *RDMA_SOURCES, *PCI_SOURCES, "pci-devices"),
        _memlock,
    ),
    NodeCheck("node.stack", "Ranks have a stack of the right size", _SOURCES, _stack),
    NodeCheck("node.nofile", "Ranks may open enough files", _SOURCES, _nofile),
    NodeCheck("node.huge-pages", "EFA finds huge pages", ("ranks", "memory", *RDMA_SOURCES), _huge),
)
