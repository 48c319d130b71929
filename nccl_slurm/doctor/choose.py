"""Which nodes are looked at, and by which ways each may be reached. Pure: Slurm's answers go in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_slurm.errors import InputError, UnknownJob
from nccl_slurm.hosts import expand
from nccl_slurm.scheduler.client import FINAL_STATES, Accounted, LiveJob, NodeState

__all__ = ["Choice", "all_idle", "answers", "beside", "closed", "given", "is_idle", "listed", "of_job", "sampled"]

#: Flags of a node that is idle all the same.
_HARMLESS = frozenset({"CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})


@dataclass(frozen=True)
class Choice:
    """``of``: how many these were taken from, None where all are here. ``job`` runs on them; ``ended``: it ran."""

    nodes: Sequence[str]
    of: int | None = None
    job: LiveJob | None = None
    ended: Accounted | None = None

    @property
    def raw_id(self) -> int | None:
        one = self.job or self.ended
        return None if one is None else one.raw_id

    @property
    def start(self) -> float | None:
        one = self.job or self.ended
        return None if one is None else one.start

    @property
    def why_unread(self) -> str:
        """Why the output of a job that does not run now is left alone."""
        state = self.ended.state if self.ended is not None else ""
        if state in FINAL_STATES:
            return "the job has ended: `nccl-slurm report` tells of its output"
        return f"the job is {state}: its ranks and its output are looked at while it is RUNNING"


def is_idle(node: NodeState) -> bool:
    """A job started there disturbs nobody and boots nothing: powered down, planned, or reserved nodes are not idle."""
    return node.state == "IDLE" and node.flags <= _HARMLESS


def answers(node: NodeState) -> bool:
    """As far as Slurm knows. A step on a node whose slurmd does not answer ends as cancelled, and shows in the job's
    DerivedExitCode."""
    return not node.failed and "NOT_RESPONDING" not in node.flags and node.state != "UNKNOWN"


def closed(node: NodeState | None) -> str:
    """Why Slurm starts nothing of ours there, neither a step nor a job."""
    if node is None:
        return "it is not known to be idle: Slurm tells no state of it"
    if node.failed:
        why = "Slurm starts nothing there"
    elif not answers(node):
        why = "its slurmd does not answer Slurm, and what is started there hangs or ends as cancelled"
    elif "DRAIN" in node.flags:
        why = "Slurm starts no job there"
    elif node.state in ("ALLOCATED", "MIXED"):
        why = "it has jobs, and none of ours is started beside them"
    else:
        why = "a job of ours is started on idle nodes alone"
    return f"it is {node.full_state}: {why}"


def of_job(job_id: str, live: Sequence[LiveJob], accounted: Sequence[Accounted]) -> Choice:
    """Nodes of a running job, else those that it had. Raises UnknownJob, InputError."""
    found = [job for job in live if job.id == job_id or str(job.raw_id) == job_id]
    if found and found[-1].state == "RUNNING" and found[-1].nodes:
        return Choice(sorted(found[-1].nodes), job=found[-1])
    ended = [job for job in accounted if job_id in (job.id, str(job.raw_id)) and job.nodes]
    if ended:
        return Choice(sorted(ended[-1].nodes), ended=ended[-1])
    if found and found[-1].nodes:
        return Choice(sorted(found[-1].nodes), job=None, ended=_as_ended(found[-1]))
    if found:
        raise InputError(f"job {job_id} is {found[-1].state} and has no nodes yet; give --nodes or --all-idle")
    raise UnknownJob(f"job {job_id}: neither slurmctld nor accounting knows nodes of it; give --nodes LIST")


def beside(
    job_id: str, chosen: LiveJob | Accounted | None, live: Sequence[LiveJob], accounted: Sequence[Accounted] = ()
) -> str:
    """What else Slurm has under this id, in words: other components of a heterogeneous job, other tasks of an array.
    Empty where ``chosen`` is all, or was named by an id of its own."""
    if chosen is None or job_id == chosen.id:
        return ""
    one = next((job for job in live if job.raw_id == chosen.raw_id), None)
    parts = {job.raw_id: job.id for job in live if one is not None and job.nodes and _is_part(job, one)}
    beside_it = "beside it run"
    if isinstance(chosen, Accounted) and not parts:
        parts = {
            job.raw_id: job.id for job in accounted if job.nodes and job.id.startswith((f"{job_id}_", f"{job_id}+"))
        }
        beside_it = "beside it ran"
    parts.pop(chosen.raw_id, None)
    if not parts:
        return ""
    ids = [parts[raw_id] for raw_id in sorted(parts)]
    named = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return f"job {job_id} is looked at as {chosen.id} alone; {beside_it} {named}: give --job with each id"


def _is_part(job: LiveJob, of: LiveJob) -> bool:
    same_array = of.array_job_id is not None and job.array_job_id == of.array_job_id
    return job.state == "RUNNING" and (same_array or (of.het_job_id is not None and job.het_job_id == of.het_job_id))


def _as_ended(job: LiveJob) -> Accounted:
    """Without accounting slurmctld knows a job for a while after its end."""
    return Accounted(job.raw_id, job.id, "", job.state, start=job.start, end=job.end, nodes=job.nodes, uid=job.uid)


def listed(hostlist: str, known: Mapping[str, NodeState]) -> Choice:
    """As `given`. Raises InputError also where the list names a node that Slurm does not have."""
    choice = given(hostlist)
    strange = [name for name in choice.nodes if name not in known]
    if strange:
        raise InputError(f"--nodes: Slurm has no node {', '.join(strange[:5])}")
    return choice


def given(hostlist: str) -> Choice:
    """Raises InputError where the list is none."""
    try:
        names = expand(hostlist)
    except ValueError as error:
        raise InputError(f"--nodes: {error}; give it as Slurm writes it: n[1-3,7]") from None
    if not names:
        raise InputError("--nodes: no node")
    return Choice(names)


def all_idle(known: Mapping[str, NodeState]) -> Choice:
    """Raises InputError where no node is idle."""
    names = [node.name for node in known.values() if is_idle(node)]
    if not names:
        raise InputError("no node is idle now; give --nodes LIST or --job ID")
    return Choice(names)


def sampled(choice: Choice, most: int | None) -> Choice:
    """Evenly spread over the list: neighbours often share a switch, a rack and a fault."""
    count = len(choice.nodes)
    if most is None or most >= count:
        return choice
    picked = [choice.nodes[at * count // most] for at in range(most)]
    return Choice(picked, count, choice.job, choice.ended)
