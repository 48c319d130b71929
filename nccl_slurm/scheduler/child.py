"""A process that answers lines of JSON, and may end, hang or talk nonsense at any time."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from nccl_slurm import strict_json

__all__ = ["Child", "ChildLost"]

#: A hundred times what 10,000 jobs take.
_LONGEST = 1 << 30
_CHUNK = 1 << 20


class ChildLost(Exception):
    """It ended, did not answer in time, or its answer is none. It is gone then. ``str()`` says which."""


class Child:
    """Started at once; ``first`` is its first line. Raises `ChildLost`, OSError where it can't be started."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # a file, because nobody empties a pipe while the child works; closed by `close`
        self._said = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        try:
            self._process = _started(command, env, self._said)
        except OSError:
            self._said.close()
            raise
        self.first = self._read()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One at a time. Raises `ChildLost`."""
        self._said.truncate(0)
        try:
            os.write(_open(self._process.stdin), json.dumps(request).encode("ascii") + b"\n")
        except OSError:
            raise self._lost(None) from None
        return self._read()

    def close(self) -> None:
        """Kill it: there is nothing that it could lose."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                pipe.close()

    def _read(self) -> dict[str, Any]:
        line = self._line()
        try:
            answer = strict_json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._lost("answered what is no JSON object")
        return answer

    def _line(self) -> bytes:
        ends_at = time.monotonic() + self._timeout_s
        parts: list[bytes] = []
        length = 0
        while not parts or not parts[-1].endswith(b"\n"):
            part = self._part(ends_at - time.monotonic())
            length += len(part)
            if length > _LONGEST:
                raise self._lost("answered more than fits")
            parts.append(part)
        return b"".join(parts)

    def _part(self, left_s: float) -> bytes:
        out = _open(self._process.stdout)
        ready, _, _ = select.select([out], [], [], max(left_s, 0.0))
        if not ready:
            raise self._lost(f"did not answer within {self._timeout_s:g} s")
        if part := os.read(out, _CHUNK):
            return part
        raise self._lost(None)

    def _lost(self, why: str | None) -> ChildLost:
        """``why`` None: it ended by itself; its last words tell more than its status."""
        if why is None:
            why = self._how_it_ended()
        self.close()
        return ChildLost(why)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:  # it closed its end of the pipe alone
            return "stopped to answer"
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        words = self._last_words()
        return f"{how}: {words}" if words else how

    def _last_words(self) -> str:
        self._said.seek(max(self._said.seek(0, os.SEEK_END) - 4096, 0))
        lines = [line.strip() for line in self._said.read().decode("ascii", "replace").splitlines() if line.strip()]
        return re.sub(r"[^\x20-\x7e]", "?", lines[-1])[:300] if lines else ""


def _started(command: Sequence[str], env: Mapping[str, str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(list(command), env=dict(env), stdin=pipe, stdout=pipe, stderr=said, cwd="/", bufsize=0)


def _open(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # by Popen's arguments
    return pipe.fileno()
