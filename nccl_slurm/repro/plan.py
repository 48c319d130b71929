"""What a reproduction has to show: a report → a `Plan`, or the reason why no script can show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.errors import NotReproducible
from nccl_slurm.model import alike
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.repro.call import UNTOLD, Call
from nccl_slurm.repro.material import Material
from nccl_slurm.repro.sighting import Sighting, usual
from nccl_slurm.repro.unlike import unlike

__all__ = ["Plan", "plan"]

_WHO = "which rank it was: not observed, the choice here is arbitrary"
_NOBODY_MISSING = (
    "whether any rank was missing: all that left a trace stood in this collective. If these are all ranks of the job, "
    "what happened lies below it (network, GPU), and this script does not show it"
)
_AFTER_THE_BARRIER = (
    "whether the program calls the monitored barrier itself: TORCH_DISTRIBUTED_DEBUG=DETAIL has one before each "
    "collective"
)


@dataclass(frozen=True)
class Plan:
    """``kind``: what `scene.scene` makes of it. ``rank``: whose part the odd rank plays; None where nobody is known.

    ``call``: in which the others stand; its parts are None where no line tells them. ``other``: what the odd rank
    issues in its place. ``error``: type and message of an exception. ``status``: how the odd rank ends, minus the
    signal's number. ``seen``: the line that tells the call. ``unsure``: sentences on what was not observed.
    """

    kind: str
    rank: int | None = None
    call: Call = UNTOLD
    other: Call = UNTOLD
    error: tuple[str, str] = ("", "")
    status: int = 0
    parameters: tuple[int, int] = (0, 0)
    seen: Sighting | None = None
    unsure: tuple[str, ...] = ()


def plan(report: Mapping[str, Any], rows: Rows) -> Plan:
    """Raises NotReproducible: nothing was judged yet, or this failure can't be shown by a few processes."""
    if report["verdict"] is None:
        raise NotReproducible(f"the run is {report['status']}, nothing is judged yet; ask again when it has a report")
    material = Material(report, rows)
    how = _HOW.get(report["verdict"]["class"])
    if how is None:
        raise NotReproducible(_refusal(material))
    return how(material)


def _missing(material: Material) -> Plan:
    if material.kinds & {"torch.store-wait", "torch.workers-wait"} and not material.waited:
        return _store(material)
    return _absent(material)


def _absent(material: Material) -> Plan:
    rank, unsure = material.rank()
    seen = usual(one for one in material.sightings if one.rank is None or one.rank != rank)
    if seen is not None and seen.call.op in ("send", "recv"):
        return Plan(
            "p2p", seen.rank, seen.call, seen=seen, unsure=(*_of_call(seen.call), "what its partner did instead")
        )
    nobody = () if rank is not None else (_NOBODY_MISSING,) if material.all_waited else (_WHO,)
    if seen is None and material.kinds & _BARRIERS:
        return Plan("absent", rank, Call("monitored_barrier"), unsure=(*nobody, *unsure, _AFTER_THE_BARRIER))
    call = seen.call if seen is not None else material.called()
    return Plan("absent", rank, call, seen=seen, unsure=(*nobody, *unsure, *_of_call(call)))


def _raised(material: Material) -> Plan:
    rank, _ = material.rank()
    error, status = material.exception(), material.status(rank)
    if error is not None:
        return replace(_ended(material, "raise"), error=error)
    if not status:
        raise NotReproducible(_refusal(material))
    return replace(_ended(material, "exit" if status > 0 else "signal"), status=status)


def _signal(material: Material) -> Plan:
    status = material.status(material.rank()[0])
    if status is None or status >= 0:
        raise NotReproducible(_refusal(material))
    return replace(_ended(material, "signal", "who sent the signal, and why"), status=status)


def _lost(material: Material) -> Plan:
    return replace(_ended(material, "exit", "how it ended: exit status 1 stands for it"), status=1)


def _ended(material: Material, kind: str, *unsure: str) -> Plan:
    """A rank ended while the others stood in a collective, which is known where they say so."""
    rank, said = material.rank()
    seen = usual(one for one in material.sightings if one.rank is None or one.rank != rank)
    nobody = (_WHO,) if rank is None else ()
    call = material.called() if seen is None else seen.call
    return Plan(kind, rank, call, seen=seen, unsure=(*nobody, *said, *unsure, *_of_call(call)))


def _mismatch(material: Material) -> Plan:
    found = unlike(material)
    if found is None:
        raise NotReproducible(_refusal(material))
    return alike(Plan, found)


def _store(material: Material) -> Plan:
    told = material.cited_kinds & set(_STORE) or material.kinds & set(_STORE)
    kind = next((kind for wanted, kind in _STORE.items() if wanted in told), None)
    if kind is None:
        raise NotReproducible(_refusal(material))
    if kind == "master" and "torch.resolve" in material.kinds:
        kind = "name"  # it prints a time-out too
    rank = material.rank()[0] if kind == "init" else None
    return Plan(kind, rank, unsure=(_WHO,) if kind in ("init", "clients") and rank is None else ())


def _of_call(call: Call) -> tuple[str, ...]:
    """What no line tells of the collective in which the others stood."""
    if call.op is None:
        return ("which collective the others were in: no line tells, all_reduce stands for it",)
    if call.op == "coalesced":
        return ("which operations were coalesced: all_reduce stands for them",)
    parts = {"shape": call.shape, "dtype (float32 stands for it)": call.dtype}
    absent = [name for name, value in parts.items() if value is None and call.op != "barrier"]
    return (f"of {call.op}, no line tells: {', '.join(absent)}",) if absent else ()


def _refusal(material: Material) -> str:
    failure = material.report["verdict"]["class"]
    why = _WHY_NOT.get(failure, "a few processes on one machine can't show it")
    seen = usual(material.sightings)
    last = f"; the last collective seen: {seen.call}" if seen is not None else ""
    return f"no script for {failure}: {why}{last}"


_BARRIERS = frozenset({"torch.barrier-failed", "torch.barrier-reached"})
#: A line → what was tried.
_STORE = {
    "torch.bind": "port",
    "torch.resolve": "name",
    "torch.client-timeout": "master",
    "torch.workers-wait": "clients",
    "torch.store-wait": "init",
}
_HOW: Mapping[str, Callable[[Material], Plan]] = {
    "collective-missing-rank": _missing,
    "collective-hang-unattributed": _absent,
    "collective-mismatch": _mismatch,
    "rank-exception": _raised,
    "process-signal": _signal,
    "net-peer-lost": _lost,
    "rendezvous-store": _store,
}
_MACHINE = "it lies in the machine, not in what ranks do among themselves"
_PATH = "it lies in the network between nodes or its settings"
_SLURM = "Slurm's word alone is known, and that is nothing a rank does"
_WHY_NOT = {
    "collective-mismatch": "no line tells which operations, shapes or types differ; "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL in the job makes torch print both sides",
    "rank-exception": "neither an exception nor an exit status was found",
    "process-signal": "no line tells which signal it was",
    "rendezvous-store": "it is torchrun's own rendezvous, which needs its agents on their nodes",
    "watchdog-stuck": "what blocked torch's watchdog thread is not in the logs; py-spy dump on a stuck rank shows it",
    "straggler": "a slow rank ends nothing",
    "cuda-oom": "it takes the program and its GPU: their memory is not in the logs",
    "host-oom": "it takes the program and its limits: its memory is not in the logs",
    "gpu-app-fault": "it takes the program's own GPU code; compute-sanitizer on that program shows it",
    "gpu-hw-ecc": _MACHINE,
    "gpu-hw-lost": _MACHINE,
    "nvlink-fabric": _MACHINE,
    "net-ib-transport": _PATH,
    "net-ib-setup": _PATH,
    "net-socket-connect": _PATH,
    "net-efa-ofi": _PATH,
    "version-mismatch": "it takes both versions, each in its environment",
    "resource-memlock": "it is a limit of the node; `ulimit -l` in a job shows it",
    "resource-shm": "it is the size of /dev/shm in that node or container; `df /dev/shm` in a job shows it",
    "slurm-node-fail": _SLURM,
    "slurm-launch": _SLURM,
    "preempt-cancel": _SLURM,
    "storage-stall": "it lies in the file system",
    "benign": "there is no failure in it",
    "benign-teardown": "there is no failure in it",
    "unknown": "nothing that was observed explains the end",
}
