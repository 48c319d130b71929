"""A real sshd on addresses of the loopback device, its keys, and a TCP proxy that cuts what goes through it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.client import PATH
from tests.cluster.processes import free_ports, wait_until

__all__ = ["Proxy", "Sshd", "keys", "running", "skip_reason"]

#: Of one sshd (MAX_LISTEN_SOCKS).
LISTENS = 16
SSHD = shutil.which("sshd", path=PATH)


def skip_reason() -> str | None:
    """Why no sshd can be had here; None where it can."""
    if os.geteuid() != 0:
        return "needs root: sshd changes users"
    return None if SSHD and shutil.which("ssh-keygen", path=PATH) else "not installed: sshd (openssh-server)"


def keys(path: Path) -> str:
    """Makes a key without a passphrase; returns its public line."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_suffix(".pub").read_text().strip()


class Sshd:
    """``addresses`` share one port. ``key`` may log in as ``users``, for ``forced`` alone where that is given."""

    def __init__(self, folder: Path, addresses: Sequence[str], key: str, forced: str = "", *settings: str) -> None:
        folder.mkdir()
        self.folder, self.addresses = folder, list(addresses)
        (self.port,) = free_ports(1)
        self.host_key = keys(folder / "host_key")
        options = f'restrict,command="{forced}" ' if forced else "restrict "
        (folder / "authorized_keys").write_text(f"{options}{key}\n")
        lines = [
            *settings,  # of two lines the first counts
            f"Port {self.port}",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",  # it lies in a folder below /tmp
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 200",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self._children: list[subprocess.Popen[bytes]] = []

    def known(self, *names: str) -> str:
        """Lines of known_hosts."""
        return "".join(f"[{name}]:{self.port} {self.host_key}\n" for name in names)

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "sshd.out").open("ab") as out:
            command = [str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")]
            for first in range(0, len(self.addresses), LISTENS):
                listen = [f"-oListenAddress={address}" for address in self.addresses[first : first + LISTENS]]
                child = subprocess.Popen([*command, *listen], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                self._children.append(child)
        if not wait_until(self._listens, 60.0):
            self.stop()
            pytest.fail(f"sshd did not come up:\n{(self.folder / 'sshd.out').read_text()}")

    def stop(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait(60)
        self._children.clear()

    def said(self) -> str:
        return (self.folder / "sshd.out").read_text(errors="replace")

    def _listens(self) -> bool:
        for address in self.addresses:
            try:
                socket.create_connection((address, self.port), 5).close()
            except OSError:
                return False
        return True


@contextlib.contextmanager
def running(sshd: Sshd) -> Iterator[Sshd]:
    sshd.start()
    try:
        yield sshd
    finally:
        sshd.stop()


class Proxy:
    """Hands one connection at a time on to ``port`` of ``address``; ends it after ``limit`` bytes of answers. With
    ``port`` None nobody is behind it: it says ``greeting``, and then nothing. ``passed``: bytes of all answers."""

    def __init__(self, address: str, port: int | None, limit: int | None = None, greeting: bytes = b"") -> None:
        self._to = None if port is None else (address, port)
        self._limit, self._greeting, self.passed = limit, greeting, 0
        self._server = socket.create_server((address, 0))
        self.port = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._open.append(client)
                if self._to is None:
                    client.sendall(self._greeting)
                    continue
                behind = socket.create_connection(self._to)
                self._open.append(behind)
                threading.Thread(target=self._pass, args=(client, behind, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(behind, client, self._limit), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        with contextlib.suppress(OSError):
            total = 0
            while chunk := source.recv(4096):
                if limit is not None and total + len(chunk) > limit:
                    break
                target.sendall(chunk)
                total += len(chunk)
                if source is not self._open[0]:
                    self.passed += len(chunk)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
