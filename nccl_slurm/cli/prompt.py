"""``nccl-slurm prompt``: an evidence pack for a colleague or a language model. Calls nobody."""

from __future__ import annotations

import click

from nccl_slurm.cli.options import config_option
from nccl_slurm.cli.subject import report_of, subject_options
from nccl_slurm.explain.classes import meaning_of
from nccl_slurm.report.pack import BYTES_DEFAULT, BYTES_MAX, BYTES_MIN, pack

__all__ = ["command"]


@click.command()
@subject_options
@click.option(
    "--max-bytes",
    type=click.IntRange(BYTES_MIN, BYTES_MAX),
    default=BYTES_DEFAULT,
    show_default=True,
    help="Least relevant facts are left out beyond this.",
)
@config_option
def command(jobid: str | None, logs: str | None, run: int | None, max_bytes: int, config_path: str | None) -> None:
    """Print the evidence of job JOBID, or of --logs PATH, as Markdown to hand on: facts, inferences, gaps, question.

    Secrets are redacted and hostile text can't leave its quotes. Nothing is sent anywhere: pipe it yourself.

    \b
    Exit status: 0 a pack was made; 1 it can't be read; 2 usage or
    configuration; 3 the job belongs to somebody else.
    """
    report = report_of(jobid, logs, run, config_path)
    meaning = meaning_of(report["verdict"]["class"]) if report["verdict"] else ""
    # bytes: the limit counts UTF-8, whatever the terminal's encoding
    click.echo(pack(report, max_bytes, meaning=meaning).encode(), nl=False)
