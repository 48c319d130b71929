"""A private MariaDB: no network, a socket in a folder of its own, gone with the process."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pymysql

__all__ = ["PROGRAMS", "Server", "missing"]

PROGRAMS = ("mariadb-install-db", "mariadbd")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class Server:
    """``folder`` must have a short path: a socket's path has at most 107 bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.socket = folder / "sock"
        self._process: subprocess.Popen[bytes] | None = None
        # A server that starts removes temporary tables in /tmp, those of another one that starts as well.
        self._env = {**os.environ, "TMPDIR": str(folder)}

    def __enter__(self) -> Server:
        data = self._folder / "data"
        own = [f"--datadir={data}", f"--user={getpass.getuser()}"]
        install = [_program("mariadb-install-db"), "--no-defaults", *own, "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True, timeout=120, env=self._env)
        self._own = own
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        small = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M", "--performance-schema=OFF"]
        quick = ["--skip-networking", "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=1"]
        log = f"--log-error={self._folder / 'error.log'}"
        command = [_program("mariadbd"), "--no-defaults", *self._own, f"--socket={self.socket}", log, *small, *quick]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=self._env)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "error.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "mariadbd did not answer within 60 s"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)
            self._process = None

    def run(self, *statements: str, database: str | None = None) -> None:
        connection = self._connect(database)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()
        finally:
            connection.close()

    def url(self, database: str, user: str = "root") -> str:
        return f"mariadb+pymysql://{user}@localhost/{database}?unix_socket={self.socket}"

    def _connect(self, database: str | None = None) -> pymysql.Connection:
        return pymysql.connect(unix_socket=str(self.socket), user="root", database=database)

    def _answers(self) -> bool:
        """A bare socket: the client library leaves its own open when the server is not there yet."""
        with socket.socket(socket.AF_UNIX) as ear:
            ear.settimeout(5)
            try:
                ear.connect(str(self.socket))
                return bool(ear.recv(1))
            except OSError:
                return False


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found is not None
    return found
