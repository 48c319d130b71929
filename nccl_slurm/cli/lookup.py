"""A job's report for whoever asks: from the store for admins, from the published copy for the job's owner."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from nccl_slurm.config import Config
from nccl_slurm.errors import InputError, NotYours, UnknownJob

__all__ = ["open_store", "report_of_job"]

_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?", re.ASCII)
_MAX_PUBLISHED = 64 * 1024 * 1024


def report_of_job(jobid: str, run: int | None, config: Config) -> dict[str, Any]:
    """Raises UnknownJob, NotYours, InputError, StoreError."""
    if not _ID.fullmatch(jobid):
        raise UnknownJob(f"{jobid!r} is no job id; give it as squeue shows it: 42, 42_1 or 43+1")
    return _from_store(jobid, run, config) if reads_store(config) else _published(jobid, run, config)


def reads_store(config: Config) -> bool:
    """Root, SlurmUser and the admin group can open the database file or its password; nobody else can."""
    if config.store_url.startswith("sqlite"):
        return os.access(config.store_url.partition("///")[2], os.R_OK)
    return os.access(config.store.password_file, os.R_OK) if config.store.password_file else os.geteuid() == 0


def open_store(config: Config) -> Any:
    """The store, read-only. For commands that admins alone may use; raises NotYours for others."""
    from nccl_slurm.history.store import Store

    path = config.store_url.partition("///")[2]
    if config.store_url.startswith("sqlite") and not os.path.exists(path) and os.access(os.path.dirname(path), os.X_OK):
        raise InputError(f"{path}: no store yet; start `nccl-slurm daemon`, or give --config")
    if not reads_store(config):
        raise NotYours(f"the store is for admins (root, SlurmUser, group {config.access.admin_group or 'not set'})")
    return Store.open(config.store_url, read_only=True, password=config.store_password())


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
        status = "settling" if chosen[0].status == "settling" else "pending"
        return build(Evidence(job=chosen[0].as_job()), None, (), status)
    finally:
        store.close()


def _unknown(jobid: str, run: int | None, runs: list[int]) -> str:
    if runs:
        return f"job {jobid} has no run {run}; it has {', '.join(map(str, runs))}"
    return f"job {jobid}: unknown here; it is pending, older than the store, or was never captured (nccl-slurm status)"


def _published(jobid: str, run: int | None, config: Config) -> dict[str, Any]:
    from nccl_slurm.daemon.publish import published_name

    if not config.paths.shared:
        raise NotYours("reports are not published on this cluster (paths.shared is empty); ask an admin for the report")
    path = os.path.join(config.paths.shared, "reports", published_name(jobid, run))
    try:
        with open(path, "rb") as file:
            return dict(json.loads(file.read(_MAX_PUBLISHED)))
    except PermissionError:
        raise NotYours(f"job {jobid}: this report belongs to the job's owner and the admins") from None
    except FileNotFoundError:
        which = f"job {jobid}" if run is None else f"run {run} of job {jobid}"
        raise UnknownJob(f"{which}: no report; it has not ended yet, ended well, or was not captured") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
