"""``nccl-slurm doctor``: what is wrong with the cluster, its nodes or a job now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.jobs import seconds_of
from nccl_slurm.cli.options import color_option, config_option, json_option, wants_color
from nccl_slurm.cli.subject import job_id
from nccl_slurm.doctor.check import AREAS, PRIORITIES, Check, Priority
from nccl_slurm.doctor.sweep import WAYS as SWEEPS
from nccl_slurm.errors import ConfigError, InputError, NcclSlurmError

__all__ = ["command"]

_COULD_NOT_LOOK = 3


def _words(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(word for one in value for word in one.split(",") if word)
    if value and not words:
        raise click.BadParameter("names no check; see nccl-slurm doctor --list")
    return words


def _since(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Seconds since 1970."""
    from nccl_slurm.scheduler.text import time_of

    if value is None:
        return None
    age, at = seconds_of(value), time_of(value.removesuffix("Z"))
    if age is None and at is None:
        raise click.BadParameter(f"{value!r}: write an age (30m, 12h, 7d) or a time in UTC (2026-11-30T18:00:00Z)")
    start = at if age is None else time.time() - age
    if start is not None and start > time.time():
        raise click.BadParameter(f"{value!r} is in the future: nothing has happened since")
    return start


@click.command()
@click.option("--job", metavar="JOBID", callback=job_id, help="The nodes of this job, beside it while it runs.")
@click.option("--nodes", metavar="LIST", help="These nodes, as Slurm writes them.")
@click.option("--all-idle", is_flag=True, help="All nodes that are idle now.")
@click.option("--local", is_flag=True, help="This node alone, as any user; asks no Slurm and needs no configuration.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="N of the chosen nodes, evenly spread.")
@click.option("--ssh", is_flag=True, help="Reach nodes by SSH alone, start nothing in Slurm.")
@click.option(
    "--only", multiple=True, metavar="CHECK", callback=_words, help="These: ids, areas, or patterns (node.*)."
)
@click.option("--skip", multiple=True, metavar="CHECK", callback=_words, help="Not these.")
@click.option("--since", metavar="AGE|TIME", callback=_since, help="Older events don't matter (default: job or boot).")
@click.option("--severity", type=click.Choice(PRIORITIES), help="Show findings of this priority or worse.")
@click.option("--no-aws", is_flag=True, help="Ask nothing of AWS.")
@click.option(
    "--cluster",
    default="",
    metavar="NAME",
    help="HyperPod cluster (default: as its files here tell, else site.aws_cluster).",
)
@click.option(
    "--region", default="", metavar="REGION", help="AWS region (default: the cluster's ARN, environment, site.region)."
)
@click.option("--compare", type=click.Path(), metavar="FILE", help="JSON of an earlier run: show what changed since.")
@click.option("--wide", is_flag=True, help="What passed, too.")
@click.option("--list", "all_checks", is_flag=True, help="All checks.")
@click.option("--explain", "explain", metavar="CHECK", help="One check: what it reads, proof, cause, remedy.")
@click.option(
    "--bandwidth", multiple=True, metavar="PATH", type=click.Path(), help="Judge this output of nccl-tests, too."
)
@click.option("--bandwidth-before", multiple=True, metavar="PATH", type=click.Path(), help="The same of earlier.")
@click.option("--sweep", type=click.Choice(SWEEPS), help="Print commands that measure the chosen nodes; look at none.")
@click.option("--limit", type=click.IntRange(1, 3600), default=45, show_default=True, help="Seconds for a node.")
@click.option("--at-once", type=click.IntRange(1, 256), default=128, show_default=True, help="Nodes at the same time.")
@click.option("--sysroot", default="", hidden=True)
@click.option("--commands", default="", hidden=True)
@json_option
@color_option
@config_option
def command(
    all_checks: bool,
    explain: str | None,
    severity: Priority | None,
    compare: str | None,
    wide: bool,
    as_json: bool,
    no_color: bool,
    sweep: str | None,
    config_path: str | None,
    **options: Any,
) -> None:
    """Check Slurm, nodes, a job, and AWS: what is wrong, how it is proven, what to do. Changes no setting and no state.

    Nodes are read at the same time: by a step beside the job (as its owner), by a job of a minute on an idle node, else
    by SSH (docs/doctor.md). With no choice of nodes, Slurm and AWS alone are asked.

    A look at an idle node starts a job of its own there, which runs the site's prolog and epilog: where these are
    broken Slurm drains it, and then no further one is begun. --ssh starts none.

    \b
    Exit status: 0 nothing at P0 or P1; 1 findings; 2 usage or configuration;
    3 it could not be looked at.
    """
    if all_checks or explain:
        click.echo(_about(explain, as_json))
        return
    _check_usage(options)
    if sweep and (as_json or compare is not None):
        raise click.UsageError("--sweep prints commands and looks at nothing: it goes without --json and --compare")
    ctx = click.get_current_context()
    before = None if compare is None else _loaded(compare)
    try:
        if sweep:
            click.echo("\n".join(_sweep(options, sweep, config_path)))
            return
        result = _run(options, config_path, hidden=as_json)
    except ConfigError:
        raise
    except NcclSlurmError as error:
        _fail(ctx, error)
    told = result.to_json()
    if as_json:
        click.echo(json.dumps({**told, "changes": _changes(before, told)} if before else told))
    else:
        from nccl_slurm.doctor.text import render

        color = wants_color(no_color)
        click.echo(render(result, color=color, severity=severity, wide=wide), color=color)
        if before:
            _show_changes(before, told)
    ctx.exit(result.status)


def _check_usage(options: dict[str, Any]) -> None:
    from nccl_slurm.recommend.cluster import wrong
    from nccl_slurm.report.visible import visible

    chosen = [name for name in ("nodes", "all_idle", "local") if options[name]]
    if len(chosen) + bool(options["job"]) > 1 and not (options["job"] and chosen == ["local"]):
        raise click.UsageError("give one of --job, --nodes, --all-idle and --local")
    if options["local"] and (options["bandwidth"] or options["bandwidth_before"]):
        raise click.UsageError("--bandwidth compares nodes: it goes without --local")
    if options["bandwidth_before"] and not options["bandwidth"]:
        raise click.UsageError("--bandwidth-before goes with --bandwidth")
    if why := wrong(options["cluster"], options["region"]):
        raise click.UsageError(visible(why))
    if options["local"] and (options["ssh"] or options["sample"]):
        raise click.UsageError("--local is this node alone: it goes with neither --ssh nor --sample")


def _sweep(options: dict[str, Any], way: str, config_path: str | None) -> Iterator[str]:
    """Raises NcclSlurmError where Slurm does not tell the nodes, or nothing can be measured on them."""
    from nccl_slurm.doctor.run import Wish, chosen
    from nccl_slurm.doctor.sweep import lines

    if not any(options[name] for name in ("job", "nodes", "all_idle")):
        raise click.UsageError("--sweep needs nodes: give --nodes, --all-idle or --job")
    wish = Wish(job=options["job"], nodes=options["nodes"], all_idle=options["all_idle"], sample=options["sample"])
    commands = list(lines(chosen(wish, config.load(config_path)), way))
    yield "# Suggested commands (run these yourself). They take whole nodes: best while those are idle."
    yield from commands


def _run(options: dict[str, Any], config_path: str | None, *, hidden: bool) -> Any:
    from nccl_slurm.doctor.run import Wish, run

    named = {"limit": "limit_s"}
    wish = Wish(aws=not options.pop("no_aws"), **{named.get(key, key): value for key, value in options.items()})
    with _progress(hidden=hidden) as told:
        loaded = config.Config() if wish.local and config_path is None else config.load(config_path)
        return run(wish, loaded, told)


def _fail(ctx: click.Context, error: NcclSlurmError) -> Any:
    """What is wrong with the words of the command line is usage; all else: nothing could be looked at."""
    from nccl_slurm.report.visible import visible

    text = str(error)
    if isinstance(error, InputError) and text.startswith("--"):
        raise click.UsageError(text)
    click.echo(f"nccl-slurm: {visible(text)}", err=True)
    ctx.exit(_COULD_NOT_LOOK)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Any]:
    """On a terminal, on standard error alone."""
    if hidden or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    bar = click.progressbar(length=1, label="nodes", file=sys.stderr)
    with bar:

        def told(done: int, of: int) -> None:
            bar.length = max(of, 1)
            bar.update(done - bar.pos)

        yield told


def _loaded(path: str) -> dict[str, Any]:
    """Raises UsageError."""
    from nccl_slurm.doctor import saved

    try:
        return saved.read(path)
    except InputError as error:
        raise click.UsageError(f"--compare {error}") from None


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    from nccl_slurm.doctor.compare import compared

    return [one.to_json() for one in compared(before, after)]


def _show_changes(before: dict[str, Any], after: dict[str, Any]) -> None:
    from nccl_slurm.doctor.compare import compared, differences
    from nccl_slurm.doctor.text import changes

    click.echo(changes(compared(before, after), before["time"], differences(before, after)))


def _about(check_id: str | None, as_json: bool) -> str:
    """Raises UsageError."""
    from nccl_slurm.doctor import registry
    from nccl_slurm.doctor.text import explained, listed

    every = list(registry.checks(*AREAS))
    if check_id is None:
        return json.dumps([_json(one) for one in every]) if as_json else listed(every)
    found = next((one for one in every if one.id == check_id), None)
    if found is None:
        raise click.UsageError(f"{check_id!r} is no check; see nccl-slurm doctor --list")
    return json.dumps(_json(found)) if as_json else explained(found)


def _json(check: Check[Any]) -> dict[str, Any]:
    told = {"id": check.id, "title": check.title, "area": check.area}
    return {**told, "reads": list(check.sources), "explains": list(check.explains)}
