"""``nccl-slurm forget``: erases what is kept of some jobs, before its time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from nccl_slurm import config
from nccl_slurm.cli.daemon import alone, lease_of, sole
from nccl_slurm.cli.lookup import check_store
from nccl_slurm.cli.options import config_option
from nccl_slurm.clock import SystemClock
from nccl_slurm.config import Config
from nccl_slurm.daemon.retention import BATCH, Forgetting
from nccl_slurm.errors import InputError, NotYours, UnknownJob
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store

__all__ = ["command"]

_ALL = 1_000_000_000


@click.command()
@click.argument("jobs", metavar="[JOBID]...", nargs=-1)
@click.option("--user", help="All runs of this user.")
@config_option
def command(jobs: Sequence[str], user: str | None, config_path: str | None) -> None:
    """Erase runs from the store and the published reports (root or the daemon's user).

    The daemon must be stopped, on all hosts. Runs that it would bring back stay, and the exit status is then 1.
    """
    if bool(jobs) == (user is not None):
        raise click.UsageError("give job ids or --user USER")
    loaded = config.load(config_path)
    state = _state_folder(loaded)
    with (
        alone(state),
        Store.open(loaded.store_url, password=loaded.store_password()) as store,
        sole(store, lease_of(loaded, store)),
    ):
        found = _found(store, jobs, user)
        forgetting = Forgetting(loaded, store, SystemClock())
        staying = [run for run in found if forgetting.comes_back(run)]
        going = [run for run in found if not forgetting.comes_back(run)]
        _forget(forgetting, going)
    click.echo(f"{len(going)} runs forgotten")
    if staying:
        raise InputError(_why(staying))


def _state_folder(loaded: Config) -> Path:
    check_store(loaded)
    state = Path(loaded.paths.state)
    if not os.access(state, os.W_OK):
        raise NotYours(f"{state}: not writable for this user; ask root or the daemon's user")
    return state


def _found(store: Store, jobs: Sequence[str], user: str | None) -> list[RunRow]:
    if user is not None:
        return list(store.list_runs(user=user, limit=_ALL))
    runs = {job: store.runs_of(job) for job in jobs}
    if unknown := [job for job, found in runs.items() if not found]:
        raise UnknownJob(f"nothing is kept of job {', '.join(unknown)}; nothing was erased, leave it out")
    return list(dict.fromkeys(run for found in runs.values() for run in found))


def _forget(forgetting: Forgetting, runs: Sequence[RunRow]) -> None:
    for first in range(0, len(runs), BATCH):
        forgetting.forget_outcomes(runs[first : first + BATCH])
        forgetting.forget(runs[first : first + BATCH])
    forgetting.store.forget_notes_on({str(run.raw_id) for run in runs} | {_leading(run.id) for run in runs})
    forgetting.store.compact()


def _leading(job_id: str) -> str:
    """``42`` of ``42_1`` and ``42+1``."""
    return job_id.replace("+", "_").partition("_")[0]


def _why(staying: Sequence[RunRow]) -> str:
    shown = ", ".join(f"{run.id} run {run.run}" for run in staying[:10])
    more = f" and {len(staying) - 10} more" if len(staying) > 10 else ""
    reason = "not judged yet, or ended within daemon.look_back_h, so that accounting would bring them back"
    return f"{len(staying)} runs stay ({shown}{more}): {reason}; try again later"
