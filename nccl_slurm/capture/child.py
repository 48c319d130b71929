"""A forked process that does one thing and answers in a pipe: costs a few milliseconds where a new Python costs 100.

What hangs in it (a file system that does not answer) can't be killed and is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Callable

from nccl_slurm.capture.command import Output, read_pipe

__all__ = ["answer_of", "close_all_but"]

_POLL_S = 0.01


def answer_of(work: Callable[[], str], *, limit_s: float, limit_bytes: int) -> Output:
    """What ``work`` returns, from a process without this one's descriptors and terminal. Never raises."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(_answer(work, writable))
    os.close(writable)
    end = time.monotonic() + limit_s
    try:
        data, why = read_pipe(pid, readable, limit_s, limit_bytes)
    finally:
        os.close(readable)
    status = _ended(pid, end if why is None and len(data) < limit_bytes else 0.0)
    text = data.decode("utf-8", "backslashreplace")
    if why is not None:
        return Output(text, why)
    if len(data) >= limit_bytes:
        return Output(text, None, cut=True)
    if status != 0:
        return Output(text, f"ended with {_shown(status)}: {text[:200] or 'no message'}")
    return Output(text, None)


def _answer(work: Callable[[], str], writable: int) -> int:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        close_all_but(writable)
        text, status = work(), 0
    except BaseException as error:
        text, status = f"{type(error).__name__}: {error}", 1
    try:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(writable, data) :]
    except OSError:
        return 1
    return status


def close_all_but(*kept: int) -> None:
    """Every descriptor from 3 on but these: a child must hold neither locks nor pipes of others."""
    low = 3
    for one in (*sorted(kept), 1024):
        os.closerange(low, one)
        low = one + 1


def _ended(pid: int, until: float) -> int | None:
    """Wait status of a child; killed at ``until`` on the monotonic clock. None where it can't even be killed."""
    status = _wait(pid, until)
    if status is None:
        _kill(pid)
        status = _wait(pid, time.monotonic() + 2.0)
    return status


def _kill(pid: int) -> None:
    """With what it has started: it leads a group of processes as soon as it runs, and is not waited for yet."""
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(pid, signal.SIGKILL)


def _wait(pid: int, until: float) -> int | None:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(_POLL_S)


def _shown(status: int | None) -> str:
    if status is None:
        return "nothing: it can't be killed"
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
