"""One outside command with a time limit and a limit on its output. A command that could not run is no finding."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from typing import Mapping, NamedTuple, Sequence

__all__ = ["Output", "read_pipe", "run"]

#: Between two looks at whether what is read from was stopped.
_LOOK_S = 0.5
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/bin"


class Output(NamedTuple):
    """``text``: what it printed. ``why`` is None where the command ended with status 0. ``left``: pid of one that
    could not be ended."""

    text: str
    why: str | None
    cut: bool = False
    left: int | None = None


def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    limit_bytes: int = 1 << 22,
    env: Mapping[str, str] | None = None,
    errors: bool = True,
) -> Output:
    """Never raises. Commands get ``LC_ALL=C``, no standard input, and die with their children at the limit.

    ``errors``: standard error is part of the text.
    """
    environment = dict(env or {}, LC_ALL="C", TZ="UTC", PATH=os.environ.get("PATH") or _PATH)
    program = _found(argv[0], environment["PATH"])
    if program is None:  # told without a process: most nodes lack one of the commands that are asked
        return Output("", f"{argv[0]}: {os.strerror(errno.ENOENT)}")
    try:
        child = subprocess.Popen(
            list(argv),
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Output("", f"{argv[0]}: {error.strerror}")
    data, why = _read(child, limit_s, limit_bytes)
    text = data.decode("utf-8", "backslashreplace")
    if why is not None:
        left = child.pid if child.poll() is None else None
        return Output(text, f"{argv[0]}: {why}", left=left)
    if len(data) >= limit_bytes:
        return Output(text, None, cut=True)
    if child.returncode != 0:
        return Output(text, f"{argv[0]}: exit {child.returncode}: {_first_line(text)}")
    return Output(text, None)


def _found(name: str, path: str) -> str | None:
    places = [name] if "/" in name else [os.path.join(folder, name) for folder in path.split(":")]
    return next((one for one in places if os.access(one, os.X_OK) and os.path.isfile(one)), None)


def _read(child: subprocess.Popen[bytes], limit_s: float, limit_bytes: int) -> tuple[bytes, str | None]:
    assert child.stdout is not None
    end = time.monotonic() + limit_s
    with child.stdout as pipe:
        data, why = read_pipe(child.pid, pipe.fileno(), limit_s, limit_bytes)
    _stop(child, max(0.0, end - time.monotonic()) if why is None and len(data) < limit_bytes else 0.0)
    return data, why


def read_pipe(child: int, pipe: int, limit_s: float, limit_bytes: int) -> tuple[bytes, str | None]:
    """What came, and why there is no more: None where the child closed the pipe, or printed too much.

    A child with a user's rights can be stopped by that user, and has no other reason to stop: nobody waits for it.
    """
    parts, size, end = [], 0, time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size < limit_bytes:
            left = end - time.monotonic()
            if selector.select(max(0.0, min(_LOOK_S, left))):
                part = os.read(pipe, min(1 << 16, limit_bytes - size))
                if not part:
                    break
                parts.append(part)
                size += len(part)
            elif _is_stopped(child):
                return b"".join(parts), "it was stopped by a signal"
            elif left <= _LOOK_S:
                return b"".join(parts), f"no answer within {limit_s:g} s"
    return b"".join(parts), None


def _is_stopped(child: int) -> bool:
    """Leaves its end to be waited for."""
    try:
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _stop(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """A child in uninterruptible sleep (a GPU driver that hangs) can't be killed: it is left behind, not waited for."""
    try:
        child.wait(timeout=grace_s)
        return
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=2)
    except (OSError, subprocess.TimeoutExpired):
        pass


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else "no message"
