"""``nccl-slurm report``: the proof behind a job's comment, or the verdict on a folder of logs."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from nccl_slurm.cli.options import color_option, config_option, json_option, wants_color

__all__ = ["command"]

#: As squeue shows it: job, array task, component of a heterogeneous job.
_JOB_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?", re.ASCII)


def _job_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _JOB_ID.fullmatch(value):
        raise click.UsageError(f"{value!r} is no job id, give it as squeue shows it: 42, 42_1 or 43+1")
    return value


@click.command()
@click.argument("jobid", required=False, callback=_job_id)
@click.option("--logs", metavar="PATH", help="Read this folder or file of logs instead; needs no Slurm.")
@click.option("--run", type=click.IntRange(min=1), help="A run of a requeued job (default: the newest).")
@click.option("--ranks", is_flag=True, help="All ranks side by side, who stopped first on top.")
@json_option
@color_option
@config_option
def command(
    jobid: str | None,
    logs: str | None,
    run: int | None,
    ranks: bool,
    as_json: bool,
    no_color: bool,
    config_path: str | None,
) -> None:
    """Show who stalled first in job JOBID (42, 42_1, 43+1), and the lines that prove it.

    \b
    Exit status: 0 a report was made, whatever it says; 1 it can't be read;
    2 usage or configuration; 3 the job belongs to somebody else.
    """
    if (jobid is None) == (logs is None):
        raise click.UsageError("give either a JOBID or --logs PATH")
    if logs is not None and run is not None:
        raise click.UsageError("--run goes with a JOBID")
    report = _of_logs(logs) if logs is not None else _of_job(str(jobid), run, config_path)
    if as_json:
        click.echo(json.dumps(report))
        return
    from nccl_slurm.report.text import render

    color = wants_color(no_color)
    click.echo(render(report, color=color, ranks=ranks), color=color)


def _of_logs(path: str) -> dict[str, Any]:
    from nccl_slurm.cli.logs import report_of_logs

    return report_of_logs(path)


def _of_job(jobid: str, run: int | None, config_path: str | None) -> dict[str, Any]:
    from nccl_slurm import config
    from nccl_slurm.cli.lookup import report_of_job

    return report_of_job(jobid, run, config.load(config_path))
