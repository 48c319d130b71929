"""A job's report for whoever asks: from the store for admins, from the published copy for the job's owner."""

from __future__ import annotations

import os
from typing import Any

from nccl_slurm.config import Config
from nccl_slurm.errors import InputError, JobError, NotYours, SlurmError, UnknownJob

__all__ = ["check_store", "open_history", "open_store", "report_of_job"]

_MAX_PUBLISHED = 64 * 1024 * 1024


def report_of_job(jobid: str, run: int | None, config: Config) -> dict[str, Any]:
    """``jobid`` as squeue shows it. Raises UnknownJob, NotYours, InputError, StoreError."""
    if reads_store(config) or (not config.paths.shared and _is_absent(config)):
        return _from_store(jobid, run, config)
    return _published(jobid, run, config)


def reads_store(config: Config) -> bool:
    """Root, the daemon's user and the admin group can open the database file or its password; nobody else can."""
    if config.store_file is not None:
        return os.access(config.store_file, os.R_OK)
    return os.geteuid() == 0 or bool(config.store.password_file and os.access(config.store.password_file, os.R_OK))


def open_store(config: Config) -> Any:
    """The store, read-only. For commands that admins alone may use; raises NotYours for others."""
    from nccl_slurm.history.store import Store

    check_store(config)
    return Store.open(config.store_url, read_only=True, password=config.store_password())


def open_history(config: Config) -> Any:
    """As `open_store`, for commands that tell of nodes: their reasons by the site's rows too. Raises ConfigError."""
    from nccl_slurm.cli.rule_files import reasons_of

    reasons = reasons_of(config)
    store = open_store(config)
    store.reasons = reasons
    return store


def check_store(config: Config) -> None:
    """Raises InputError where there is none on this host, and NotYours for those who may not read it."""
    if _is_absent(config):
        raise InputError(
            f"{config.store_file}: no store on this host; run this where `nccl-slurm daemon` runs, or give --config"
        )
    if not reads_store(config):
        admins = ", ".join(["root", "the daemon's user", *([f"group {g}"] if (g := config.access.admin_group) else [])])
        raise NotYours(f"the store is for admins ({admins}); `nccl-slurm report JOBID` shows jobs of your own")


def _is_absent(config: Config) -> bool:
    """A SQLite file that certainly is not there; a folder that is closed to this user tells nothing."""
    if config.store_file is None:
        return False
    try:
        os.stat(config.store_file)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


def _from_store(jobid: str, run: int | None, config: Config) -> dict[str, Any]:
    from nccl_slurm.daemon.runs import key_of
    from nccl_slurm.model import Evidence
    from nccl_slurm.report.build import build

    store = open_store(config)
    try:
        runs = store.runs_of(jobid)
        chosen = runs[-1:] if run is None else [row for row in runs if row.run == run]
        if not chosen:
            raise UnknownJob(_unknown(jobid, run, [row.run for row in runs]))
        kept = store.report(*key_of(chosen[0]))
        if kept is not None:
            return dict(kept.report)
        if chosen[0].status == "settling":
            return build(Evidence(job=chosen[0].as_job()), None, (), "settling")
        pending = build(Evidence(job=chosen[0].as_job()), None, (), "pending")
        return _as_it_runs(jobid, config) or pending if chosen[0] is runs[-1] else pending
    finally:
        store.close()


def _as_it_runs(jobid: str, config: Config) -> dict[str, Any] | None:
    """From what lies on shared file systems; None where the job does not run, or can't be looked at."""
    from nccl_slurm.cli.watch import look_once

    try:
        return look_once(config, jobid)
    except (JobError, SlurmError, InputError):
        return None


def _unknown(jobid: str, run: int | None, runs: list[int]) -> str:
    if runs:
        return f"job {jobid} has no run {run}; --run takes {', '.join(map(str, runs))}"
    why = "it is pending, older than the store, or was never captured"
    return f"job {jobid} is unknown here: {why}; `nccl-slurm status` says whether the daemon runs"


def _published(jobid: str, run: int | None, config: Config) -> dict[str, Any]:
    from nccl_slurm.daemon.publish import published_name
    from nccl_slurm.report.load import loads

    if not config.paths.shared:
        why = "paths.shared is empty, so reports are not published"
        raise NotYours(f"{config.source}: {why}; ask an admin for this one, or give --config")
    folder = os.path.join(config.paths.shared, "reports")
    path = os.path.join(folder, published_name(jobid, run))
    try:
        with open(path, "rb") as file:
            return loads(file.read(_MAX_PUBLISHED))
    except PermissionError:
        raise NotYours(
            f"job {jobid} is not yours: its report is for its owner and the admins; ask one of them"
        ) from None
    except FileNotFoundError:
        if not os.path.isdir(folder):
            raise InputError(f"{folder}: no such folder on this host; mount it, or use a host that has it") from None
        running = _as_it_runs(jobid, config) if run is None else None
        if running is not None:
            return running
        which = f"job {jobid}" if run is None else f"run {run} of job {jobid}"
        raise UnknownJob(
            f"{which} has no report: it has not ended, or was not captured; ask an admin if it should"
        ) from None
    except (OSError, InputError) as error:
        raise InputError(f"{path}: can't be read: {error}; ask an admin to look at it") from None
