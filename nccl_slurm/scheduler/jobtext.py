"""Pure readers of jobs: squeue's live jobs, sacct's records. How hostile text is kept apart: see `text`.

For up to 5 s after a job began slurmdbd may hold a record that it made up from the job's first step: named
``allocation``, owned by *root*, without array or het id, with the step's nodes alone, and with a final state if the job
has ended. slurmctld's own record replaces it. It is told by its empty partition, and left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.model import Step
from nccl_slurm.scheduler.client import FINAL_STATES, Accounted, CommentState, LiveJob
from nccl_slurm.scheduler.text import clean, exit_pair, gpus_of, hosts_of, number_of, records, text_of, time_of

__all__ = [
    "ACCOUNTING_FIELDS",
    "COMMENT_FIELDS",
    "LIVE_FIELDS",
    "live_format",
    "read_accounting",
    "read_comments",
    "read_excluded",
    "read_live",
    "stdio_path",
]

#: Fields of squeue -O, the same in 22.05, 24.11 and 26.05.
LIVE_FIELDS = (
    "JobID",
    "JobArrayID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "Name",
    "State",
    "Reason",
    "Partition",
    "UserID",
    "UserName",
    "NodeList",
    "BatchHost",
    "BatchFlag",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "RestartCnt",
    "exit_code",
    "DerivedEC",
    "tres-alloc",
    "WorkDir",
    "STDOUT",
    "STDERR",
    "Comment",
)

#: Fields of sacct; the client leaves out those that this version lacks (FailedNode and Restarts before 24).
ACCOUNTING_FIELDS = (
    "JobIDRaw",
    "JobID",
    "DBIndex",
    "Cluster",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "NodeList",
    "User",
    "UID",
    "Partition",
    "AllocTRES",
    "FailedNode",
    "Restarts",
    "Reason",
    "JobName",
)

COMMENT_FIELDS = ("JobIDRaw", "JobID", "State", "Submit", "End", "NodeList", "Partition", "Comment", "AdminComment")


def live_format(delimiter: str) -> str:
    """Argument of squeue -O. A suffix without a width before it makes squeue print the whole value.

    ``delimiter`` must not begin with a digit, a sign or a blank (read as a width) and must not hold a comma.
    """
    return ",".join(f"{field}:{delimiter}" for field in LIVE_FIELDS)


def read_live(text: str, delimiter: str, *, gpus_tracked: bool) -> tuple[LiveJob, ...]:
    rows = records(text, delimiter, LIVE_FIELDS)
    return tuple(job for job in (_live(row, gpus_tracked) for row in rows) if job)


def read_excluded(text: str) -> dict[int, tuple[str, ...]]:
    """Of squeue's ``%A %x``. Tasks of an array that wait are one line with the array's own id."""
    found: dict[int, tuple[str, ...]] = {}
    for line in text.splitlines():
        job, _, nodes = line.partition(" ")
        raw_id, named = number_of(job), hosts_of(nodes.strip())
        if raw_id is not None and named:
            found[raw_id] = named
    return found


def _live(row: Mapping[str, str], gpus_tracked: bool) -> LiveJob | None:
    raw_id = number_of(row["JobID"])
    if raw_id is None:
        return None
    state = row["State"].upper()
    array_task = number_of(row["ArrayTaskID"])
    job = LiveJob(
        raw_id=raw_id,
        id=clean(row["JobArrayID"]),
        name=clean(row["Name"]),
        state=state,
        array_job_id=number_of(row["ArrayJobID"]) if text_of(row["ArrayTaskID"]) else None,
        array_task_id=array_task,
        het_job_id=number_of(row["HetJobID"]),
        het_offset=number_of(row["HetJobOffset"]),
        user=text_of(row["UserName"]),
        uid=number_of(row["UserID"]),
        partition=text_of(row["Partition"]),
        reason=text_of(row["Reason"]),
        node_list=text_of(row["NodeList"]) or "",
        nodes=hosts_of(row["NodeList"]),
        batch_host=text_of(row["BatchHost"]),
        batch=row["BatchFlag"] not in ("", "0"),
        workdir=_path(row["WorkDir"]),
        comment=row["Comment"] if row["Comment"] != "(null)" else "",
        submit=time_of(row["SubmitTime"]),
        start=time_of(row["StartTime"]),
        end=time_of(row["EndTime"]) if state in FINAL_STATES else None,
        restarts=number_of(row["RestartCnt"]),
        exit=exit_pair(row["exit_code"]),
        derived_exit=exit_pair(row["DerivedEC"]),
        gpus=gpus_of(row["tres-alloc"], tracked=gpus_tracked),
    )
    return _with_paths(job, _path(row["STDOUT"]), _path(row["STDERR"]))


def _path(value: str) -> str | None:
    return None if text_of(value) is None else value


def _with_paths(job: LiveJob, stdout: str | None, stderr: str | None) -> LiveJob:
    """squeue prints the patterns unreplaced, and for *no --output* its own guess: wrong for arrays before 24."""
    if not job.batch:
        return job
    default = "slurm-%A_%a.out" if job.array_job_id is not None else "slurm-%j.out"
    guess = f"{job.workdir}/slurm-{job.raw_id}.out"
    out = default if stdout in (None, guess) else stdout or default
    err = out if stderr in (None, guess) else stderr or out
    return replace(job, stdout=stdio_path(out, job), stderr=stdio_path(err, job))


_PATTERN = re.compile(r"%(?:%|([0-9]*)([AajJnNstuxbr]))")


def stdio_path(pattern: str, job: LiveJob) -> str:
    """The path that slurmstepd opens for a batch script (src/slurmd/common/fname.c).

    A backslash anywhere switches patterns off and is itself removed. Widths pad numbers with zeros, up to ten places.
    ``scontrol show job`` is no help: it leaves %N, %t, %n, %% and widths as they are.
    """
    if "\\" in pattern:
        path = re.sub(r"\\(.?)", r"\1", pattern, flags=re.DOTALL)
    else:
        values = _pattern_values(job)
        path = _PATTERN.sub(lambda found: _replacement(found, values), pattern)
    return path if path.startswith("/") or not job.workdir else posixpath.join(job.workdir, path)


def _replacement(found: re.Match[str], values: Mapping[str, int | str]) -> str:
    if found.group(2) is None:
        return "%"
    value = values[found.group(2)]
    width = min(int(found.group(1)[:4] or 0), 10)
    return value if isinstance(value, str) else f"{value:0{width}d}"


def _pattern_values(job: LiveJob) -> dict[str, int | str]:
    no_task = 4294967294  # Slurm's NO_VAL, printed as it is
    task = no_task if job.array_task_id is None else job.array_task_id
    return {
        "A": job.raw_id if job.array_job_id is None else job.array_job_id,
        "a": task,
        "b": task % 10,
        "j": job.raw_id,
        "J": job.raw_id,
        "n": 0,
        "N": job.batch_host or (job.nodes[0] if job.nodes else ""),
        "r": job.restarts or 0,
        "s": "batch",
        "t": 0,
        "u": job.user or str(job.uid),
        "x": job.name,
    }


def read_accounting(text: str, delimiter: str, fields: Sequence[str], *, gpus_tracked: bool) -> tuple[Accounted, ...]:
    """``sacct -D -p`` with ``fields`` out of `ACCOUNTING_FIELDS`; the steps of a record follow it."""
    jobs: list[Accounted] = []
    steps: list[list[Step]] = []
    for row in records(text, delimiter, fields):
        raw_id = number_of(row["JobIDRaw"])
        if raw_id is not None:
            jobs.append(_accounted(raw_id, row, gpus_tracked))
            steps.append([])
        elif jobs and number_of(row["JobIDRaw"].partition(".")[0]) == jobs[-1].raw_id:
            steps[-1].append(_step(row))
    return tuple(replace(job, steps=tuple(own)) for job, own in zip(jobs, steps, strict=True) if job.partition)


def _accounted(raw_id: int, row: Mapping[str, str], gpus_tracked: bool) -> Accounted:
    state, cancelled_by = _ended_by(row["State"])
    return Accounted(
        raw_id=raw_id,
        id=clean(row["JobID"]),
        cluster=clean(row["Cluster"]),
        state=state,
        record=number_of(row.get("DBIndex"), 20),  # 24.11 and later: 16295862543852638208, all of 64 bits
        cancelled_by=cancelled_by,
        submit=time_of(row["Submit"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        exit=exit_pair(row["ExitCode"]),
        derived_exit=exit_pair(row["DerivedExitCode"]),
        node_list=text_of(row["NodeList"]) or "",
        nodes=hosts_of(row["NodeList"]),
        user=text_of(row["User"]),
        uid=number_of(row["UID"]),
        partition=text_of(row["Partition"]),
        name=clean(row["JobName"]),
        gpus=gpus_of(row["AllocTRES"], tracked=gpus_tracked),
        failed_node=text_of(row.get("FailedNode")),
        restarts=number_of(row.get("Restarts")),
        reason=text_of(row["Reason"]),
    )


def _ended_by(state: str) -> tuple[str, str | None]:
    """``CANCELLED by 7001`` → ``CANCELLED``, ``7001``."""
    base, _, who = state.partition(" by ")
    return base.strip().upper(), who.strip() or None


def _step(row: Mapping[str, str]) -> Step:
    code, _, signal = (exit_pair(row["ExitCode"]) or "0:0").partition(":")
    return Step(
        id=clean(row["JobIDRaw"]),
        name=clean(row["JobName"]),
        state=_ended_by(row["State"])[0],
        exit=int(code),
        signal=int(signal),
        nodes=hosts_of(row["NodeList"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
    )


def read_comments(text: str, delimiter: str, wanted: Iterable[int]) -> dict[int, CommentState]:
    """``sacct -X -p`` with `COMMENT_FIELDS`. sacct also prints the other tasks and components of a job: left out."""
    jobs = set(wanted)
    states = (_comment(row) for row in records(text, delimiter, COMMENT_FIELDS))
    return {state.raw_id: state for state in states if state and state.raw_id in jobs}


def _comment(row: Mapping[str, str]) -> CommentState | None:
    raw_id = number_of(row["JobIDRaw"])
    if raw_id is None or text_of(row["Partition"]) is None:
        return None
    return CommentState(
        raw_id=raw_id,
        id=clean(row["JobID"]),
        state=_ended_by(row["State"])[0],
        submit=time_of(row["Submit"]),
        end=time_of(row["End"]),
        comment=row["Comment"],
        admin_comment=row["AdminComment"],
        ran=bool(hosts_of(row["NodeList"])),
    )
