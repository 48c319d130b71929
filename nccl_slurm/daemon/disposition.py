"""Which ended runs are diagnosed, which only recorded, which ignored. docs/jobs.md shows this table; a test walks it.

The states are Slurm's job base states (man sacct, JOB STATE CODES). A job's exit code alone is not enough: sacct gives
0:0 to jobs that were cancelled or ran into their time limit, hang or no hang, and COMPLETED to a job whose batch script
swallowed a failed step.
"""

from __future__ import annotations

from collections.abc import Sequence

from nccl_slurm.model import DOCTOR_JOB, READER_STEP, Job, Step

__all__ = ["ENDED", "FINAL_ROWS", "disposition", "in_scope", "step_failed"]

#: (states, ran on a node, a step failed or DerivedExitCode is not 0:0) -> disposition, why. None means *either*.
FINAL_ROWS: tuple[tuple[frozenset[str], bool | None, bool | None, str, str], ...] = (
    (frozenset({"REVOKED"}), None, None, "ignore", "another cluster of the federation ran it"),
    (
        frozenset({"CANCELLED", "DEADLINE", "PREEMPTED", "REQUEUED"}),
        False,
        None,
        "ignore",
        "ended before it got a node",
    ),
    (frozenset({"COMPLETED"}), None, False, "record", "all went well: the denominator of the node's history"),
    (frozenset({"COMPLETED"}), None, True, "diagnose", "the batch script went on after a failed step"),
    (frozenset({"PREEMPTED", "REQUEUED"}), True, False, "record", "taken off its nodes while it worked"),
    (frozenset({"PREEMPTED", "REQUEUED"}), True, True, "diagnose", "a step had failed before it was taken off"),
    (
        frozenset({"CANCELLED", "TIMEOUT", "DEADLINE"}),
        True,
        None,
        "diagnose",
        "people cancel what hangs; 0:0 says nothing",
    ),
    (
        frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "LAUNCH_FAILED", "SPECIAL_EXIT", "TIMEOUT"}),
        None,
        None,
        "diagnose",
        "it failed",
    ),
)

#: Base states after which a run can't go on (a requeued job gets a new run).
ENDED: frozenset[str] = frozenset().union(*(row[0] for row in FINAL_ROWS))


def disposition(job: Job) -> tuple[str, str]:
    """``(diagnose | record | ignore | open, why)``; *open* for states that are not final."""
    ran = bool(job.nodes)
    failed = step_failed(job.steps) or (job.derived_exit or "0:0") != "0:0" or _launch_failed(job)
    if job.name == DOCTOR_JOB and job.state == "COMPLETED" and not failed:
        return "ignore", "a look of the doctor's at an idle node"
    for states, row_ran, row_failed, what, why in FINAL_ROWS:
        if job.state in states and row_ran in (None, ran) and row_failed in (None, failed):
            return what, why
    return "open", "not ended"


def step_failed(steps: Sequence[Step]) -> bool:
    """A step that was cancelled did not fail by itself; the extern step only mirrors the job."""
    own = [step for step in steps if not step.id.endswith(".extern") and step.name != READER_STEP]
    return any(step.state not in ("CANCELLED", "RUNNING") and (step.exit or step.signal) for step in own) or any(
        step.state in ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL") for step in own
    )


def _launch_failed(job: Job) -> bool:
    """0:53 and 0:54 are Slurm's own words for a launch that failed (prolog, work directory, output file)."""
    return job.exit in ("0:53", "0:54")


def in_scope(scope: str, gpus: int | None, evidence: bool) -> bool:
    """``scope`` is a word of the configuration; ``evidence``: a NCCL or torch line or file was seen in the run."""
    return scope == "all" or (scope == "gpu-or-evidence" and (bool(gpus) or evidence))
