"""Xid 13 and 31 again and again on one GPU (WORKFLOW_XID_13, WORKFLOW_XID_31): the program, or after all the GPU?

NVIDIA wants a pattern over several runs before diagnostics. Jobs of one user don't make one: they run the same program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.recommend.fault import Fault, of_machine, same_gpu
from nccl_slurm.recommend.policy import Policy

__all__ = ["repeated"]

_GRAPHICS, _MEMORY = 13, 31
_PLACE = re.compile(r"GPC (\d{1,3}), TPC (\d{1,3})")
_DAY_S = 86_400.0


def repeated(faults: Sequence[Fault], machine: Machine | None, policy: Policy) -> str | None:
    """Why the GPU deserves a look, None for no reason. Nothing without a history, and nothing where the history does
    not tell whose jobs they were: two users at least must have met it."""
    if machine is None:
        return None
    known = of_machine(machine)
    for fault in faults:
        if fault.code in (_GRAPHICS, _MEMORY) and fault.gpu and fault.time is not None:
            alike = [one for one in known if _alike(one, fault, known, policy)]
            jobs = _jobs([*alike, fault], machine)
            users = {job.data.get("user") for job in jobs} - {None}
            if len(jobs) >= policy.limit("repeat-jobs") and len(users) > 1:
                return (
                    f"Xid {fault.code} came on GPU {fault.gpu} in {len(jobs)} jobs of {len(users)} users within "
                    f"{policy.limit('repeat-window-d'):g} days: run dcgmi diag on it when it is idle"
                )
    return None


def _alike(one: Fault, fault: Fault, known: Sequence[Fault], policy: Policy) -> bool:
    """Same code on the same GPU within the window, of 13 in the same GPC and TPC as well (NVIDIA's flow)."""
    if one.code != fault.code or one.time is None or fault.time is None or not same_gpu(one, fault, known):
        return False
    if abs(fault.time - one.time) > policy.limit("repeat-window-d") * _DAY_S:
        return False
    return fault.code == _MEMORY or bool(_places(one) & _places(fault))


def _places(fault: Fault) -> frozenset[tuple[str, str]]:
    return frozenset((gpc, tpc) for gpc, tpc in _PLACE.findall(fault.text))


def _jobs(faults: Iterable[Fault], machine: Machine) -> list[MachineEvent]:
    """Runs in which one of the faults fell: the first that ended after it."""
    ends = sorted(machine.of_kind("job"), key=lambda job: job.time)
    found = [next((job for job in ends if not fault.after(job.time, job.uncertainty_s)), None) for fault in faults]
    return [job for number, job in enumerate(found) if job is not None and job not in found[:number]]
