"""``nccl-slurm watch``: who is behind or silent in a job that runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.options import color_option, config_option, json_option, wants_color
from nccl_slurm.cli.subject import job_id
from nccl_slurm.config import Config
from nccl_slurm.errors import InputError, UnknownJob

__all__ = ["command", "look_once"]

#: Below it a silence says nothing: buffers are written out late, steps take seconds.
_FLOOR_S = 30.0
_RAS = "localhost:28028"


def _address(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    from nccl_slurm.capture.ras import address

    if value == "off":
        return ""
    try:
        address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command()
@click.argument("jobid", callback=job_id)
@click.option(
    "--interval", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Seconds between looks."
)
@click.option(
    "--silent",
    type=click.FloatRange(min=1),
    default=_FLOOR_S,
    show_default=True,
    help="Shorter silences are none, in seconds; nor are any below three times the longest pause before.",
)
@click.option("--once", is_flag=True, help="One look.")
@click.option("--no-step", is_flag=True, help="Start no step in the job: read shared file systems alone.")
@click.option(
    "--ras",
    metavar="HOST:PORT",
    envvar="NCCL_RAS_ADDR",
    default=_RAS,
    show_default=True,
    callback=_address,
    help="Where NCCL's RAS listens on the job's first node; off: don't ask it.",
)
@click.option("--ranks", is_flag=True, help="All ranks side by side, at each look.")
@json_option
@color_option
@config_option
def command(
    jobid: str,
    interval: float,
    silent: float,
    once: bool,
    no_step: bool,
    ras: str,
    ranks: bool,
    as_json: bool,
    no_color: bool,
    config_path: str | None,
) -> None:
    """Watch running job JOBID: which rank is behind the others, or silent.

    Reads what the ranks left until now, on all nodes at the same time, by a step of the job (srun --overlap), which
    accounting keeps. Ends with the job.

    \b
    Exit status: 0 it was looked at; 1 it does not run, or can't be read;
    2 usage or configuration; 3 the job belongs to somebody else.
    """
    show = _Shown(as_json, ranks, wants_color(no_color))
    with _watching(config.load(config_path), ras, no_step, silent) as (watch, find):
        job = find(jobid)
        while job is not None:
            with _progress(len(job.nodes), hidden=no_step) as told:
                report = watch.look(job, told)
            show(report)
            if once:
                return
            time.sleep(interval)
            job = _again(find, jobid)
    click.echo(f"job {jobid} does not run any more; `nccl-slurm report {jobid}` tells of its end", err=True)


def look_once(loaded: Config, jobid: str) -> dict[str, Any]:
    """A report on a running job from shared file systems alone. Raises as `running_job` does."""
    with _watching(loaded, "", no_step=True) as (watch, find):
        report: dict[str, Any] = watch.look(find(jobid), lambda count: None)
        return report


@contextmanager
def _watching(loaded: Config, ras: str, no_step: bool, floor_s: float = _FLOOR_S) -> Iterator[tuple[Any, Any]]:
    from nccl_slurm.cli.rules import pattern_texts
    from nccl_slurm.clock import SystemClock
    from nccl_slurm.live.step import StepReader
    from nccl_slurm.live.watch import Watch, output_reader, running_job
    from nccl_slurm.scheduler.cli_client import CliClient

    slurm, live = loaded.slurm, loaded.live
    client = CliClient(slurm.bin, slurm.conf, slurm.timeout_s)
    step = None if no_step else StepReader(slurm.bin, slurm.conf, live.reader, live.limit_s)
    with output_reader(pattern_texts(loaded)) as output:
        watch = Watch(client, SystemClock(), output, step, ras, floor_s)
        yield watch, lambda jobid: running_job(client, jobid)


def _again(find: Any, jobid: str) -> Any:
    """None once it does not run any more."""
    try:
        return find(jobid)
    except (UnknownJob, InputError):
        return None


@contextmanager
def _progress(nodes: int, *, hidden: bool) -> Iterator[Any]:
    """Told how many nodes have answered; shown on a terminal."""
    if hidden or not sys.stderr.isatty():
        yield lambda count: None
        return
    with click.progressbar(length=nodes, label="nodes", file=sys.stderr) as bar:
        yield lambda count: bar.update(count - bar.pos)


class _Shown:
    """One line a look; the whole report at the first one, and when who is named or why changes."""

    def __init__(self, as_json: bool, ranks: bool, color: bool) -> None:
        self._as_json, self._ranks, self._color = as_json, ranks, color
        self._before: object = None

    def __call__(self, report: dict[str, Any]) -> None:
        if self._as_json:
            click.echo(json.dumps(report))
            sys.stdout.flush()
            return
        from nccl_slurm.report.text import render
        from nccl_slurm.report.visible import visible

        now = _named(report)
        stamp = time.strftime("%H:%M:%S")
        if self._ranks or now != self._before:
            click.echo(f"-- {stamp}\n{render(report, color=self._color, ranks=self._ranks)}", color=self._color)
        else:
            click.echo(f"-- {stamp} {visible(report['verdict']['summary'])}")
        sys.stdout.flush()
        self._before = now


def _named(report: dict[str, Any]) -> object:
    verdict = report["verdict"]
    who = [(one["rank"], one["host"]) for key in ("culprits", "suspects") for one in verdict[key]]
    return verdict["class"], verdict["confidence"], who
