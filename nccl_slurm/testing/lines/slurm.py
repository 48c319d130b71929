"""srun's and slurmstepd's lines in a job's output."""

from __future__ import annotations

from nccl_slurm.testing.lines import stamp
from nccl_slurm.testing.place import Place

__all__ = ["ENDS", "aborted", "cancelled", "launch_failed", "node_failed", "oom", "task_ended"]

#: How a job is ended → the reason in slurmstepd's line.
ENDS = {"cancel": "", "time": " DUE TO TIME LIMIT", "preempt": " DUE TO PREEMPTION", "requeue": " DUE TO JOB REQUEUE"}
#: strsignal(3).
_WORDS = {6: "Aborted", 7: "Bus error", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}


def task_ended(host: str, task: int, code: int) -> str:
    """``code``: minus a signal, or an exit code."""
    if code >= 0:
        how = f"Exited with exit code {code}"
    else:
        core = " (core dumped)" if -code in (6, 7, 11) else ""
        how = _WORDS.get(-code, f"Signal {-code}") + core
    return f"srun: error: {host}: task {task}: {how}"


def aborted() -> str:
    return "srun: Job step aborted: Waiting up to 62 seconds for job step to finish."


def cancelled(place: Place, at: float, reason: str = "", what: str = "STEP") -> str:
    job, first = place.scenario.job_id, place.scenario.nodes[0]
    step = f"{what} {job}.0" if what == "STEP" else f"{what} {job}"
    return f"slurmstepd: error: *** {step} ON {first} CANCELLED AT {stamp.slurm(at)}{reason} ***"


def node_failed(place: Place, host: str, at: float) -> list[str]:
    reason = " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
    return [f"srun: error: Node failure on {host}", cancelled(place, at, reason)]


def launch_failed(place: Place, host: str, why: str) -> str:
    return f"srun: error: Task launch for StepId={place.scenario.job_id}.0 failed on node {host}: {why}"


def oom(place: Place) -> str:
    return (
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={place.scenario.job_id}.0. "
        "Some of the step tasks have been OOM Killed."
    )
