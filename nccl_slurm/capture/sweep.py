"""The timer's work: ships what was not delivered, finishes what a killed worker left, and keeps the spool small."""

from __future__ import annotations

import os
import shutil
import time

from nccl_slurm.capture import machine, ship, spool, worker
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.spool import Run

__all__ = ["close_orphans", "sweep"]

#: A worker that has not written its record by then was killed.
_WORKER_GRACE_S = 60.0


def sweep(conf: Conf) -> list[str]:
    """Why what could not be done: one line each."""
    _close_earlier_boots(conf)
    _close_superseded(spool.runs(conf.spool))
    return _ship_all(conf) + _remove_old(conf) + _shrink(conf) + _drop_dead_links(conf)


def close_orphans(conf: Conf) -> list[str]:
    """At boot: runs that no epilog closed belong to an earlier boot and ended with it. All are closed before the first
    is finished: where time runs out, the timer finishes the rest."""
    return [problem for run in _close_earlier_boots(conf) for problem in _finish(conf, run)]


def _close_earlier_boots(conf: Conf) -> list[Run]:
    current = machine.boot_id(conf.sysroot)
    closed = []
    for run in spool.runs(conf.spool):
        prolog = run.prolog
        if run.closed_by is None and current is not None and prolog and prolog.boot_id not in (None, current):
            run.close("boot")
            closed.append(run)
    return closed


def _ship_all(conf: Conf) -> list[str]:
    """Stops at half the worker's time: a shared folder that does not answer must not keep old runs on the disk."""
    end = time.monotonic() + conf.worker_limit_s / 2
    problems: list[str] = []
    for run in spool.runs(conf.spool):
        if time.monotonic() < end:
            problems += _ship(conf, run)
    return problems


def _close_superseded(found: list[Run]) -> None:
    """A run whose job has started here again is over, though no epilog said so."""
    newest = {run.job_id: run for run in found}
    for run in found:
        if run.closed_by is None and newest[run.job_id] is not run:
            run.close("sweep")


def _ship(conf: Conf, run: Run) -> list[str]:
    if run.closed_by is None or run.delivered is not None:
        return []
    record = run.read_json("record.json")
    if record is None:
        return _finish(conf, run) if run.closed_by == "sweep" or _was_left(conf, run) else []
    why = ship.deliver(conf, run, str(record.get("node")))
    return [] if why is None else [f"{run.name}: {why}"]


def _was_left(conf: Conf, run: Run) -> bool:
    age = time.time() - os.stat(os.path.join(run.path, "closed")).st_mtime
    return age > conf.worker_limit_s + _WORKER_GRACE_S


def _finish(conf: Conf, run: Run) -> list[str]:
    try:
        why = worker.finish(conf, run)
    except (OSError, ValueError) as error:
        why = str(error)
    return [] if why is None else [f"{run.name}: {why}"]


def _remove_old(conf: Conf) -> list[str]:
    limit = time.time() - conf.retain_hours * 3600.0
    gone = [run for run in spool.runs(conf.spool) if run.delivered is not None and run.delivered < limit]
    return [problem for run in gone for problem in _remove(run.path)]


def _shrink(conf: Conf) -> list[str]:
    """Over the limit: oldest delivered runs go; then users' files of closed runs whose record is written and waits.

    A record that was not delivered is never removed: it is the only copy.
    """
    limit = conf.spool_max_mb * 1e6
    problems: list[str] = []
    found = spool.runs(conf.spool)
    sizes = {run.path: _size(run.path) for run in found}
    total = sum(sizes.values())
    delivered = [run for run in found if run.delivered is not None]
    written = [run for run in found if run.delivered is None and run.closed_by and run.read_json("record.json")]
    for path in [run.path for run in delivered] + [run.user for run in written]:
        if total <= limit:
            return problems
        before = _size(path)
        problems += _remove(path)
        total -= before - _size(path)
    if total > limit:
        problems.append(f"{conf.spool}: {total / 1e6:.0f} MB of open or undelivered runs; more than SPOOL_MAX_MB")
    return problems


def _size(path: str) -> int:
    """Bytes on the disk, links not followed; 0 where it is gone."""
    total = 0
    for base, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _remove(path: str) -> list[str]:
    """rmtree works by descriptor and follows no link. The user's folder is taken from its user first, so that no
    process of that user can fill it while it goes."""
    user = path if os.path.basename(path) == "user" else os.path.join(path, "user")
    try:
        if os.path.isdir(user) and os.geteuid() == 0:
            os.chown(user, 0, 0)
        shutil.rmtree(path)
    except (OSError, RecursionError) as error:
        return [f"{path}: not removed: {error}"]
    return []


def _drop_dead_links(conf: Conf) -> list[str]:
    """``SPOOL/<job id>`` → the run's folder: useless once that is closed or gone."""
    try:
        names = [name for name in os.listdir(conf.spool) if name.isdigit()]
    except OSError as error:
        return [f"{conf.spool}: {error.strerror}"]
    for name in names:
        link = os.path.join(conf.spool, name)
        if os.path.islink(link) and (not os.path.isdir(link) or os.path.exists(os.path.join(link, "closed"))):
            os.unlink(link)
    return []
