"""``nccl-slurm report``: the proof behind a job's comment, or the verdict on a folder of logs."""

from __future__ import annotations

import json

import click

from nccl_slurm.cli.options import color_option, config_option, json_option, wants_color
from nccl_slurm.cli.subject import report_of, subject_options

__all__ = ["command"]


@click.command()
@subject_options
@click.option("--ranks", is_flag=True, help="All ranks side by side, those who are named on top.")
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
    report = report_of(jobid, logs, run, config_path)
    if as_json:
        click.echo(json.dumps(report))
        return
    from nccl_slurm.report.text import render

    color = wants_color(no_color)
    click.echo(render(report, color=color, ranks=ranks), color=color)
