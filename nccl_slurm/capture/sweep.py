"""The timer's work: ships what was not delivered, finishes what a killed worker left, and keeps the spool small."""

from __future__ import annotations

import os
import time

from nccl_slurm.capture import command, machine, outbox, removal, ship, spool, worker
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.spool import Run

__all__ = ["close_orphans", "sweep"]

#: A worker that has not written its record by then was killed.
_WORKER_GRACE_S = 60.0
#: Of one removal: millions of names take minutes.
_LIMIT_S = 300.0
#: A run folder gets its root/ within a second, or its prolog was killed.
_PROLOG_S = 3600.0
#: Free space that runs to come need: ranks' logs and dumps are some tens of MB a run, a record is 4 MiB at most.
_FREE_SHARE, _FREE_MIN, _FREE_MAX = 0.1, 64e6, 4e9


def sweep(conf: Conf) -> list[str]:
    """Why what could not be done: one line each."""
    _close_earlier_boots(conf)
    _close_superseded(spool.runs(conf.spool))
    return _ship_all(conf) + _remove_old(conf) + _shrink(conf) + _drop_dead_links(conf) + outbox.withdraw_old(conf)


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
    """Ends at half the worker's time: a shared folder that does not answer must not keep old runs on the disk."""
    end = time.monotonic() + conf.worker_limit_s / 2
    problems: list[str] = []
    for run in spool.runs(conf.spool):
        left = end - time.monotonic()
        if left > 0:
            problems += _ship(conf, run, left)
    return problems


def _close_superseded(found: list[Run]) -> None:
    """A run whose job has started here again is over, though no epilog said so."""
    newest = {run.job_id: run for run in found}
    for run in found:
        if run.closed_by is None and newest[run.job_id] is not run:
            run.close("sweep")


def _ship(conf: Conf, run: Run, limit_s: float) -> list[str]:
    if run.closed_by is None or run.delivered is not None:
        return []
    record = run.read_json("record.json")
    if record is None:
        return _finish(conf, run) if run.closed_by == "sweep" or _was_left(conf, run) else []
    why = ship.deliver(conf, run, str(record.get("node")), limit_s=min(60.0, limit_s))
    return [] if why is None else [f"{run.name}: {why}"]


def _was_left(conf: Conf, run: Run) -> bool:
    """A stamp in the future is one of before the clock was set back."""
    age = time.time() - os.stat(os.path.join(run.path, "closed")).st_mtime
    return age > conf.worker_limit_s + _WORKER_GRACE_S or age < -_WORKER_GRACE_S


def _finish(conf: Conf, run: Run) -> list[str]:
    try:
        why = worker.finish(conf, run)
    except (OSError, ValueError) as error:
        why = str(error)
    return [] if why is None else [f"{run.name}: {why}"]


def _remove_old(conf: Conf) -> list[str]:
    """As far in the future counts as old too: the clock was wrong then, and may have been so by years."""
    now, limit = time.time(), conf.retain_hours * 3600.0
    gone = [run for run in spool.runs(conf.spool) if run.delivered is not None and abs(now - run.delivered) > limit]
    paths = [*(run.path for run in gone), *spool.remains(conf.spool, _PROLOG_S)]
    return [problem for path in paths for problem in removal.remove(path, _LIMIT_S)]


def _shrink(conf: Conf) -> list[str]:
    """Over the limit, or the disk nearly full: oldest delivered runs go; then users' files of closed runs whose record
    is written and waits.

    A record that was not delivered is never removed: it is the only copy. Nor is one that waits to be fetched, where no
    shared folder has it too, until its hours are over. What a user keeps from being removed is not
    counted: others' runs would go for it, each time.
    """
    limit = conf.spool_max_mb * 1e6
    problems: list[str] = []
    found = spool.runs(conf.spool)
    kept = [run.path for run in found if removal.mount_below(run.path)] + spool.remains(conf.spool, _PROLOG_S)
    total = _size(conf.spool) - sum(map(_size, kept))
    found = [run for run in found if run.path not in kept]
    delivered = [run for run in found if run.delivered is not None]
    written = [run for run in found if run.delivered is None and run.closed_by and run.read_json("record.json")]
    fetched_alone = conf.outbox_group and not conf.shared
    gone = [run.user if fetched_alone else run.path for run in delivered]
    for path in gone + [run.user for run in written]:
        if total <= limit and not _nearly_full(conf.spool):
            return problems
        total -= _size(path)
        problems += removal.remove(path, _LIMIT_S)
    if total > limit:
        problems.append(f"{conf.spool}: {total / 1e6:.0f} MB of open or undelivered runs; more than SPOOL_MAX_MB")
    if _nearly_full(conf.spool):
        problems.append(f"{conf.spool}: the disk is nearly full, and not of runs that could go")
    return problems


def _nearly_full(folder: str) -> bool:
    """Of bytes or of inodes. A tenth of a large disk is more than is needed, of a small one less; where even half of it
    is less than that, half has to do."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    size = float(disk.f_frsize * disk.f_blocks)
    wanted = min(max(_FREE_SHARE * size, _FREE_MIN), _FREE_MAX, size / 2)
    return disk.f_frsize * disk.f_bavail < wanted or disk.f_favail < _FREE_SHARE * disk.f_files


def _size(path: str) -> int:
    """Bytes on the disk, links not followed; 0 where it is gone. du bears any depth: users nest folders deeper than
    Python recurs."""
    told = command.run(["du", "-skx", "--", path], limit_s=_LIMIT_S, errors=False).text.split("\t", 1)[0]
    return int(told) * 1024 if told.isascii() and told.isdigit() else 0


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
