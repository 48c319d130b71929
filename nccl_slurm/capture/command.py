"""One outside command with a time limit and a limit on its output. A command that could not run is no finding."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from typing import Mapping, NamedTuple, Sequence

__all__ = ["Output", "read_pipe", "run"]

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
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Output("", f"{argv[0]}: {error.strerror}")
    data, ended = _read(child, limit_s, limit_bytes)
    text = data.decode("utf-8", "backslashreplace")
    if not ended:
        left = child.pid if child.poll() is None else None
        return Output(text, f"{argv[0]}: no answer within {limit_s:g} s", left=left)
    if len(data) >= limit_bytes:
        return Output(text, None, cut=True)
    if child.returncode != 0:
        return Output(text, f"{argv[0]}: exit {child.returncode}: {_first_line(text)}")
    return Output(text, None)


def _read(child: subprocess.Popen[bytes], limit_s: float, limit_bytes: int) -> tuple[bytes, bool]:
    assert child.stdout is not None
    end = time.monotonic() + limit_s
    with child.stdout as pipe:
        data, ended = read_pipe(pipe.fileno(), end, limit_bytes)
    _stop(child, max(0.0, end - time.monotonic()) if ended and len(data) < limit_bytes else 0.0)
    return data, ended


def read_pipe(pipe: int, end: float, limit_bytes: int) -> tuple[bytes, bool]:
    """What came, and whether the other side ended by itself (or by printing too much). ``end``: monotonic clock."""
    parts, size, ended = [], 0, False
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size < limit_bytes and selector.select(max(0.0, end - time.monotonic())):
            part = os.read(pipe, min(1 << 16, limit_bytes - size))
            if not part:
                ended = True
                break
            parts.append(part)
            size += len(part)
    return b"".join(parts), ended or size >= limit_bytes


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
