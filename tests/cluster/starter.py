"""``nccl-slurm`` for root, without the start of an interpreter: one process has imported it, and forks for each call.

Imports are 0.6 s of CPU a call and nearly all of it, and tests ask hundreds of times. Arguments, environment, folder,
output and exit status are those of the command.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

__all__ = ["Starter"]

CHECKOUT = Path(__file__).resolve().parents[2]
_MOUNTS = "/proc/thread-self/ns/mnt"


class Starter:
    """One call at a time. The process ends with its socket, so with whoever started it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._mounts = ""

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        asked = json.dumps({"arguments": [*arguments], "env": {**env}, "folder": str(folder)}).encode()
        with self._lock, TemporaryFile() as out, TemporaryFile() as err:
            talk = self._open()
            talk.settimeout(timeout)
            try:
                socket.send_fds(talk, [asked], [out.fileno(), err.fileno()])
                status = int(talk.recv(64))
            except TimeoutError:
                self.close()
                raise subprocess.TimeoutExpired(["nccl-slurm", *arguments], timeout) from None
            except BaseException:
                self.close()  # its answer would be taken for the next one's
                raise
            texts = [_text(file) for file in (out, err)]
        return subprocess.CompletedProcess(["nccl-slurm", *arguments], status, *texts)

    def _open(self) -> socket.socket:
        """Anew where it has ended, and where the caller has mounts of its own by now: its commands see them."""
        mounts = os.readlink(_MOUNTS)
        if mounts != self._mounts or self._child is None or self._child.poll() is not None:
            self.close()
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "tests.cluster.starter", str(theirs.fileno())]
                self._child = subprocess.Popen(
                    command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            self._mounts = mounts
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._child is not None:
            self._socket.close()
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._socket = self._child = None


def _text(file: Any) -> str:
    file.seek(0)
    text: str = file.read().decode("utf-8", "replace")
    return text


def serve(talk: socket.socket) -> None:
    """Until the other side is closed."""
    _import_all()
    while True:
        asked, files, _, _ = socket.recv_fds(talk, 1 << 20, 2)
        if not asked:
            return
        pid = os.fork()
        if pid == 0:
            talk.close()
            _become(json.loads(asked), files)
        for file in files:
            os.close(file)
        talk.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _import_all() -> None:
    from nccl_slurm.cli.main import COMMANDS

    for name in {*COMMANDS.values()} - {"daemon"}:
        importlib.import_module(f"nccl_slurm.cli.{name}")
    gc.freeze()


def _become(asked: Any, files: Sequence[int]) -> None:
    status = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["folder"])
        status = _run(asked["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(arguments: Sequence[str]) -> int:
    from nccl_slurm.cli.main import main

    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
