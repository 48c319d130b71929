"""Hands a record over: into ``SHARED/tmp``, fsynced, renamed into ``SHARED/new``. A record not delivered stays."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import time
from contextlib import suppress
from typing import Callable

from nccl_slurm.capture import outbox
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.rights import become
from nccl_slurm.capture.spool import Run
from nccl_slurm.errors import InputError

__all__ = ["deliver", "shared_name"]

_LIMIT_S = 60.0


def shared_name(run: Run, node: str) -> str:
    return f"{run.name}.{node}.json"


def deliver(conf: Conf, run: Run, node: str, limit_s: float = _LIMIT_S, record: bytes | None = None) -> str | None:
    """None when delivered, else why not (it is tried again by the timer). ``record`` None: the one in the spool.
    Where records are offered for fetching and there is no shared folder, one that is offered counts as delivered.

    The folders are never made here: where the shared file system is not mounted they would be made on the local disk,
    and the record would be lost there.
    """
    name = shared_name(run, node)
    unoffered = outbox.offer(conf, run, name) if conf.outbox_group else "no NCCL_SLURM_SHARED is set"
    if not conf.shared:
        if unoffered is None:
            _mark_delivered(run)
        return unoffered
    try:
        data = _stored(run) if record is None else record
    except OSError as error:
        return f"record.json: {error.strerror}"
    why = _in_child(lambda: _write_alone(os.path.dirname(run.path), conf, name, data), limit_s)
    if why is None:
        _mark_delivered(run)
    return why or (unoffered if conf.outbox_group else None)


def _stored(run: Run) -> bytes:
    with open(run.root("record.json"), "rb") as file:
        return file.read()


def _mark_delivered(run: Run) -> None:
    """An empty file: a full disk still takes it. One that is out of inodes doesn't: then the same record is handed over
    again, which the daemon sees and stores once."""
    with suppress(OSError):
        os.close(os.open(run.root("delivered"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _write_alone(spool: str, conf: Conf, name: str, data: bytes) -> None:
    """One writer a node: one that hangs on the shared folder can't be killed and keeps the lock, and those that come
    after it can be killed while they wait. So a folder that never answers costs one process a node."""
    lock = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _write(conf.shared, name, data, conf.ship_uid)


def _write(shared: str, name: str, data: bytes, uid: int | None) -> None:
    """Runs in the child: may give root away, may hang on a file system that does not answer."""
    if uid is not None and uid != os.geteuid():
        become(uid, _group_of(uid))
    tmp, new = _opened(os.path.join(shared, "tmp")), _opened(os.path.join(shared, "new"))
    part = f"{name}.{os.getpid()}.{time.time_ns()}"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=tmp)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
        os.rename(part, name, src_dir_fd=tmp, dst_dir_fd=new)
        os.fsync(new)
    except OSError:
        os.unlink(part, dir_fd=tmp)
        raise


def _opened(path: str) -> int:
    """The daemon takes nothing from somebody else's folder, and what lies there is gone when they like."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(folder)
    if info.st_uid not in (0, os.geteuid()):
        raise InputError(f"{path}: belongs to uid {info.st_uid}; chown it to uid {os.geteuid()}")
    if info.st_mode & 0o022:
        raise InputError(f"{path}: others may write here (mode {info.st_mode & 0o7777:04o}); chmod 0700")
    return folder


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def _in_child(work: Callable[[], None], limit_s: float) -> str | None:
    """None where ``work`` succeeded in a forked process within the limit, else why not."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        os._exit(_work_in_child(work, writable))
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        status = _wait(child, limit_s)
        if status is None:
            return f"the shared folder did not answer within {limit_s:g} s"
        if status == 0:
            return None
        return pipe.read(300).decode("utf-8", "replace") or f"the writer ended with status {status}"


def _work_in_child(work: Callable[[], None], writable: int) -> int:
    try:
        work()
    except (OSError, InputError) as error:
        where = getattr(error, "filename", None)
        reason = f"{where}: {error.strerror}" if isinstance(error, OSError) and where else str(error)
        os.write(writable, reason.encode("utf-8", "replace")[:300])
        return 1
    except BaseException:
        return 2
    return 0


def _wait(child: int, limit_s: float) -> int | None:
    """Its wait status; None where it had to be left (a process that hangs on a file system can't be killed)."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, os.WNOHANG)
    return None
