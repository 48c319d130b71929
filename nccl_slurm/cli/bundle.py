"""``nccl-slurm bundle``: a job's case as one file or folder to hand on. Sends nothing anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option
from nccl_slurm.cli.subject import report_of, subject_options
from nccl_slurm.errors import InputError, StoreError

__all__ = ["command"]

_MB = 1_000_000


@click.command()
@subject_options
@click.option("-o", "output", metavar="PATH", help="Write it here (default: nccl-slurm-JOBID-runN.tar.gz, mode 0600).")
@click.option("--folder", is_flag=True, help="A folder in place of a packed tar.")
@click.option("--doctor", "doctor", metavar="FILE", help="Findings of `nccl-slurm doctor --json`, to go in.")
@click.option("--with-doctor", is_flag=True, help="Run `nccl-slurm doctor --job JOBID` first, and put it in.")
@click.option("--no-slurm", is_flag=True, help="Ask Slurm nothing.")
@click.option(
    "--max-mb",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Files for which there is no room are left out, the least telling ones first.",
)
@click.option("--dry-run", is_flag=True, help="List what would be in it, and write nothing.")
@click.option("--force", is_flag=True, help="PATH may exist; it is replaced.")
@config_option
def command(
    jobid: str | None,
    logs: str | None,
    run: int | None,
    output: str | None,
    folder: bool,
    doctor: str | None,
    with_doctor: bool,
    no_slurm: bool,
    max_mb: int,
    dry_run: bool,
    force: bool,
    config_path: str | None,
) -> None:
    """Put the case of job JOBID, or of --logs PATH, into one file: report, records, log lines, what support asks.

    Secrets are redacted. Nothing is sent anywhere: look through it, then hand it on yourself.

    \b
    Exit status: 0 a bundle was made; 1 it can't be read or written; 2 usage
    or configuration; 3 the job belongs to somebody else.
    """
    if force and folder:
        raise click.UsageError("--force goes with a tar; a folder that is there stays")
    if output in ("-", ""):
        raise click.UsageError(
            f"-o {output!r}: a bundle is a file or a folder, give its path (./- for one of that name)"
        )
    if with_doctor and (doctor is not None or jobid is None):
        raise click.UsageError("--with-doctor goes with a JOBID, and without --doctor")
    report = report_of(jobid, logs, run, config_path)
    loaded = config.load(config_path)
    from nccl_slurm.bundle.make import make

    findings, gaps = _findings(doctor, jobid if with_doctor else None, config_path, report["job"])
    material = _material(report, jobid, logs, run, loaded, no_slurm)
    bundle = make(replace(material, doctor=findings, gaps=[*material.gaps, *gaps]), max_mb * _MB)
    name = _name(report)
    path = output or (name if folder else f"{name}.tar.gz")
    if dry_run:
        _check_free(path, force)
    else:
        _write(path, bundle, report, folder=folder, force=force)
    click.echo("\n".join(_told(path, bundle, dry_run)))


def _material(
    report: dict[str, Any],
    jobid: str | None,
    logs: str | None,
    run: int | None,
    loaded: config.Config,
    no_slurm: bool,
) -> Any:
    from nccl_slurm.bundle.make import Material
    from nccl_slurm.bundle.read import of_job, of_logs
    from nccl_slurm.bundle.slurmtext import of_slurm
    from nccl_slurm.doctor.aws.place import find
    from nccl_slurm.model import Gap

    extracts, gaps = of_logs(report, logs) if logs is not None else of_job(report, report["job"]["user"])
    parts = list(extracts)
    if jobid is not None and not no_slurm:
        told, more = of_slurm(report["job"], loaded)
        parts, gaps = [*parts, *told], [*gaps, *more]
    kept, more = _kept(report, jobid, run, loaded)
    place = find(configured=(loaded.site.aws_cluster, loaded.site.region))
    more = [*more, *([Gap("AWS region", place.unused)] if place.unused else [])]
    return Material(report, place, kept, None, parts, [*gaps, *more])


def _kept(report: dict[str, Any], jobid: str | None, run: int | None, loaded: config.Config) -> Any:
    """Records of nodes are for who may read the store; a job's owner has the report."""
    from nccl_slurm.bundle.records import Kept, kept_of
    from nccl_slurm.cli.lookup import open_store
    from nccl_slurm.errors import NotYours
    from nccl_slurm.model import Gap

    if jobid is None:
        return Kept(), []
    try:
        store = open_store(loaded)
    except (NotYours, InputError, StoreError) as error:
        return Kept(), [Gap("node records and history of machines", str(error))]
    try:
        return kept_of(store, jobid, report["job"]["run"] if run is None else run, _named(report)), []
    finally:
        store.close()


def _named(report: dict[str, Any]) -> list[str]:
    verdict = report["verdict"] or {}
    people = [person["host"] for key in ("culprits", "suspects") for person in verdict.get(key, ())]
    named = [*people, *(item["target"] for item in report["recommendations"])]
    return list(dict.fromkeys(name for name in named if name))


def _findings(
    path: str | None, job: str | None, config_path: str | None, of: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, list[Any]]:
    """Of a file, or of a doctor that is run now for ``job``; what is wrong with the latter is a gap. ``of``: the
    report's job."""
    from nccl_slurm.bundle.doctor import misfit, of_file, of_run
    from nccl_slurm.model import Gap

    if path is not None:
        found = of_file(path)
        if why := misfit(found, of):
            raise InputError(
                f"--doctor {path}: {why}; give the findings of `nccl-slurm doctor --job {of['id'] or 'JOBID'} --json`"
            )
        return found, []
    if job is None:
        return None, []
    try:
        return of_run(job, config_path), []
    except InputError as error:
        return None, [Gap("nccl-slurm doctor", str(error))]


def _name(report: dict[str, Any]) -> str:
    from nccl_slurm.bundle.part import safe

    job = report["job"]
    number = safe(str(job["id"]).replace("+", "_"), 0) if job["id"] else "logs"
    return f"nccl-slurm-{number}" + (f"-run{int(job['run'])}" if job["run"] is not None else "")


def _write(path: str, bundle: Any, report: dict[str, Any], *, folder: bool, force: bool) -> None:
    from nccl_slurm.bundle.write import packed, to_folder, to_tar

    if folder:
        to_folder(path, bundle.parts)
    else:
        to_tar(path, packed(bundle.parts, _name(report), _ended(report)), force=force)


def _check_free(path: str, force: bool) -> None:
    """A try ends as the real run would. Raises InputError."""
    if os.path.lexists(path) and not force:
        raise InputError(f"{path}: is there already; give another name, or --force to replace it")
    above = os.path.dirname(path.rstrip("/")) or "."
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{path}: can't be written: {above} is no folder that you may write to; give another with -o")
    if os.path.isdir(path) and not os.path.islink(path):
        raise InputError(f"{path}: can't be written: it is a folder; give another name with -o")


def _ended(report: dict[str, Any]) -> float:
    """The job's end is the time of all files: the same case makes the same tar."""
    from datetime import datetime

    end = report["job"]["end"]
    return datetime.fromisoformat(end.replace("Z", "+00:00")).timestamp() if end else 0.0


def _told(path: str, bundle: Any, dry_run: bool) -> list[str]:
    from nccl_slurm.report.visible import visible

    lines = [f"{len(part.data):>12}  {part.path}" for part in sorted(bundle.parts, key=lambda part: part.path)]
    lines += [f"{len(part.data):>12}  {part.path}  left out: no room" for part in bundle.left]
    lines += [f"not observed: {visible(gap.source, 120)}: {visible(gap.why, 200)}" for gap in bundle.gaps[:_GAPS_SHOWN]]
    if len(bundle.gaps) > _GAPS_SHOWN:
        lines.append(f"not observed: {len(bundle.gaps) - _GAPS_SHOWN} more, see INDEX.md")
    what = "would be written" if dry_run else "written; nothing was sent"
    return [*lines, f"{visible(path)}: {len(bundle.parts)} files, {bundle.size} bytes before packing, {what}"]


_GAPS_SHOWN = 10
