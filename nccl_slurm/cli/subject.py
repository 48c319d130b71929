"""What a command speaks of: a job, or a folder of logs. Both become a report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

__all__ = ["job_id", "report_of", "subject_options"]

Decorator = Callable[..., Any]

#: As squeue shows it: job, array task, component of a heterogeneous job.
_JOB_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?", re.ASCII)


def job_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Callback of an argument. Raises UsageError."""
    if value is not None and not _JOB_ID.fullmatch(value):
        raise click.UsageError(f"{value!r} is no job id, give it as squeue shows it: 42, 42_1 or 43+1")
    return value


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``jobid``, ``logs`` and ``run`` for `report_of`."""
    decorators: tuple[Decorator, ...] = (
        click.argument("jobid", required=False, callback=job_id),
        click.option("--logs", metavar="PATH", help="Read this folder or file of logs instead; needs no Slurm."),
        click.option("--run", type=click.IntRange(min=1), help="A run of a requeued job (default: the newest)."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def report_of(jobid: str | None, logs: str | None, run: int | None, config_path: str | None) -> dict[str, Any]:
    """Raises UsageError, and what `report_of_logs` and `report_of_job` raise."""
    if (jobid is None) == (logs is None):
        raise click.UsageError("give either a JOBID or --logs PATH")
    if logs is not None and run is not None:
        raise click.UsageError("--run goes with a JOBID")
    return _of_logs(logs, config_path) if logs is not None else _of_job(str(jobid), run, config_path)


def _of_logs(path: str, config_path: str | None) -> dict[str, Any]:
    from nccl_slurm.cli.logs import report_of_logs

    return report_of_logs(path, config_path)


def _of_job(jobid: str, run: int | None, config_path: str | None) -> dict[str, Any]:
    from nccl_slurm import config
    from nccl_slurm.cli.lookup import report_of_job

    return report_of_job(jobid, run, config.load(config_path))
