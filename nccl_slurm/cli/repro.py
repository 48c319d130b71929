"""``nccl-slurm repro``: a script of a few processes that shows a job's failure on one machine."""

from __future__ import annotations

import os
import tempfile

import click

from nccl_slurm.cli.options import config_option
from nccl_slurm.cli.subject import report_of, subject_options
from nccl_slurm.errors import InputError
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.repro.plan import plan
from nccl_slurm.repro.script import BACKENDS, NPROC_MAX, Wish, write

__all__ = ["command"]


@click.command()
@subject_options
@click.option(
    "--nproc", type=click.IntRange(2, NPROC_MAX), default=2, show_default=True, help="Processes that the script starts."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="auto: NCCL where the script finds a GPU a process, else gloo.",
)
@click.option("--monitored-barrier", is_flag=True, help="Put a monitored barrier before the collective.")
@click.option("-o", "output", metavar="FILE", help="Write the script here (mode 0600) and not to standard output.")
@click.option("--force", is_flag=True, help="FILE may exist; it is replaced.")
@config_option
def command(
    jobid: str | None,
    logs: str | None,
    run: int | None,
    nproc: int,
    backend: str,
    monitored_barrier: bool,
    output: str | None,
    force: bool,
    config_path: str | None,
) -> None:
    """Write a script that shows the failure of job JOBID, or of --logs PATH, with a few processes on one machine.

    It needs Python and torch, and no GPU. It says what it expects and what it can't show, and checks itself.

    \b
    Exit status: 0 a script was made; 1 it can't be read, or no script can
    show it; 2 usage or configuration; 3 the job belongs to somebody else.
    """
    if force and output is None:
        raise click.UsageError("--force goes with -o FILE")
    report = report_of(jobid, logs, run, config_path)
    subject = f"logs {logs}" if logs is not None else f"job {jobid} run {report['job']['run']}"
    text = write(report, plan(report, load_rows()), subject, Wish(nproc, backend, monitored_barrier))
    if output is None:
        click.echo(text.encode(), nl=False)
    else:
        _save(output, text, force=force)


def _save(path: str, text: str, *, force: bool) -> None:
    """For its owner alone: lines of the job's logs stand in it. A file that is there stays unless ``force``."""
    try:
        descriptor, part = tempfile.mkstemp(prefix=".repro.", dir=os.path.dirname(path) or ".")  # mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            if force:
                os.replace(part, path)
            else:
                os.link(part, path)
        finally:
            if os.path.lexists(part):
                os.unlink(part)
    except FileExistsError:
        raise InputError(f"{path}: is there already; give another name, or --force to replace it") from None
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}; give -o a place that you may write to") from None
