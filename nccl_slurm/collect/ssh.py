"""A visit to one node by SSH: questions to its ``nccl-slurm-node serve`` and their answers, within limits.

By paramiko, imported at the first visit (0.3 s). No agent, no other key than the one that is configured, no password. A
node is told by its host key under Slurm's name of it; a key that differs from the known one is refused always.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nccl_slurm.config import Ssh
from nccl_slurm.errors import ConfigError, RemoteError
from nccl_slurm.report.visible import visible

if TYPE_CHECKING:
    import paramiko

__all__ = ["Session", "Target", "Visitor"]

_CHUNK = 1 << 16
_TEXT = 200


@dataclass(frozen=True)
class Target:
    """``node``: Slurm's name, under which its host key is known. ``address``: what is connected to."""

    node: str
    address: str


class Session:
    """One connection, until ``end`` of the monotonic clock."""

    def __init__(self, transport: paramiko.Transport, node: str, command: str, end: float) -> None:
        self._transport = transport
        self._node, self._command, self._end = node, command, end

    def ask(self, words: str) -> Iterator[bytes]:
        """The answer as it comes. Raises RemoteError where there is none, or it was cut: after what had come."""
        return self._answer(f"{self._command} serve {words}", b"")

    def feed(self, command: str, data: bytes) -> Iterator[bytes]:
        """As `ask`, of a shell's command that reads ``data``. A key with a forced command refuses it."""
        return self._answer(command, data)

    def _answer(self, command: str, data: bytes) -> Iterator[bytes]:
        try:
            channel = self._transport.open_session(timeout=self._left())
            try:
                channel.settimeout(self._left())
                channel.exec_command(command)
                if data:
                    channel.sendall(data)
                    channel.shutdown_write()
                yield from self._chunks(channel)
                self._check_end(channel)
            finally:
                channel.close()
        except RemoteError:
            raise
        except TimeoutError:
            raise RemoteError(f"{self._node}: no answer in time (ssh.visit_s)") from None
        except Exception as error:  # paramiko's own, OSError, EOFError: the connection is gone
            raise RemoteError(f"{self._node}: the connection broke: {_line(error)}") from None

    def _chunks(self, channel: paramiko.Channel) -> Iterator[bytes]:
        while True:
            channel.settimeout(self._left())
            chunk = channel.recv(_CHUNK)
            if not chunk:
                return
            yield chunk

    def _check_end(self, channel: paramiko.Channel) -> None:
        """recv_exit_status has no limit of its own."""
        channel.status_event.wait(self._left())
        status = channel.recv_exit_status() if channel.exit_status_ready() else -1
        if status == -1:
            raise RemoteError(f"{self._node}: the connection was cut")
        if status != 0:
            said = b""
            with suppress(OSError):
                said = channel.recv_stderr(4096) if channel.recv_stderr_ready() else b""
            text = _line(said.decode("utf-8", "replace")) or "no word of why"
            raise RemoteError(f"{self._node}: {os.path.basename(self._command)} ended with status {status}: {text}")

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Visitor:
    """Opens sessions; may be used by many threads. ``learned``: where host keys of ``host_keys = "first-use"`` go."""

    def __init__(self, ssh: Ssh, learned: str) -> None:
        self._ssh, self._learned = ssh, learned
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._closed = False
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # each failure is told by us, in one line

    def check(self) -> None:
        """Raises ConfigError where no node could be visited: no paramiko, no key, no known hosts."""
        ssh = self._ssh
        _paramiko()
        try:
            info = os.stat(ssh.key_file)
        except OSError as error:
            why = f"{error.strerror}; make one: ssh-keygen -t ed25519 -N '' -f {ssh.key_file}"
            raise ConfigError(f"ssh.key_file: {ssh.key_file}: {why}") from None
        if info.st_mode & 0o077 or not stat.S_ISREG(info.st_mode):
            raise ConfigError(f"ssh.key_file: {ssh.key_file}: others may read it, or it is no file; chmod 0600")
        if not os.access(ssh.key_file, os.R_OK):
            raise ConfigError(f"ssh.key_file: {ssh.key_file}: not readable; run this as the daemon's user")
        if ssh.host_keys == "known" and not os.access(ssh.known_hosts, os.R_OK):
            why = "missing or not readable; ssh-keyscan the nodes into it, and compare the keys"
            raise ConfigError(f"ssh.known_hosts: {ssh.known_hosts}: {why}")

    @contextmanager
    def session(self, target: Target) -> Iterator[Session]:
        """Raises RemoteError."""
        client = self._client(target)
        with self._lock:
            if self._closed:
                raise RemoteError(f"{target.node}: not visited: this is the end")
            self._open.add(client)
        try:
            end = time.monotonic() + self._ssh.visit_s
            yield Session(self._connected(client, target), target.node, self._ssh.command, end)
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def close(self) -> None:
        """Ends what is open: whoever waits for an answer gets RemoteError."""
        with self._lock:
            self._closed, clients = True, list(self._open)
        for client in clients:
            client.close()

    def _client(self, target: Target) -> paramiko.SSHClient:
        client = _paramiko().SSHClient()
        client.set_missing_host_key_policy(_policy(self, target))
        name = self._host_name(target)
        for path in (self._ssh.known_hosts, self._learned):
            try:
                for key in _keys_of(path, name):
                    client.get_host_keys().add(name, key.get_name(), key)
            except OSError as error:
                raise RemoteError(f"{target.node}: {path}: {error.strerror}") from None
        return client

    def _host_name(self, target: Target) -> str:
        """As known_hosts and paramiko write it."""
        return target.node if self._ssh.port == 22 else f"[{target.node}]:{self._ssh.port}"

    def _connected(self, client: paramiko.SSHClient, target: Target) -> paramiko.Transport:
        ssh, limit = self._ssh, self._ssh.connect_s
        try:
            client.connect(
                target.node,
                port=ssh.port,
                sock=socket.create_connection((target.address, ssh.port), limit),
                username=ssh.user,
                key_filename=ssh.key_file,
                allow_agent=False,
                look_for_keys=False,
                timeout=limit,
                banner_timeout=limit,
                auth_timeout=limit,
                channel_timeout=limit,
            )
        except RemoteError:
            raise
        except Exception as error:
            raise RemoteError(f"{target.node}: {self._why(error, target)}") from None
        transport = client.get_transport()
        if transport is None:
            raise RemoteError(f"{target.node}: the connection was closed")
        return transport

    def _why(self, error: Exception, target: Target) -> str:
        module, ssh = _paramiko(), self._ssh
        if isinstance(error, module.BadHostKeyException):
            name = self._host_name(target)
            return (
                "its host key is not the known one: if the machine was replaced or set up anew, remove the old key "
                f"(ssh-keygen -R '{name}' -f {self._file_of(name)}) and add the new one; else somebody is in between"
            )
        if isinstance(error, module.PasswordRequiredException):
            return f"{ssh.key_file} has a passphrase; make one without, for this alone"
        if isinstance(error, module.AuthenticationException):
            return f"{ssh.user} is not let in with {ssh.key_file}; put its public part into authorized_keys there"
        if isinstance(error, TimeoutError):
            return f"no answer from {target.address} port {ssh.port} within {ssh.connect_s:g} s (ssh.connect_s)"
        if isinstance(error, OSError):
            return f"{target.address} port {ssh.port}: {_line(error.strerror or error)}"
        return f"no SSH connection with {target.address} port {ssh.port}: {_line(error) or type(error).__name__}"

    def _file_of(self, name: str) -> str:
        with suppress(OSError):
            if any(_keys_of(self._learned, name)):
                return self._learned
        return self._ssh.known_hosts

    def unknown_host(self, target: Target, name: str, key: paramiko.PKey) -> None:
        """By the policy. ``name``: as known_hosts has it. Raises RemoteError unless a first key is believed."""
        if self._ssh.host_keys == "known":
            keyscan = f"ssh-keyscan -p {self._ssh.port} {target.node}"
            raise RemoteError(
                f"{target.node}: its host key ({key.get_name()} {key.fingerprint}) is not in {self._ssh.known_hosts}; "
                f"compare it with `{keyscan}` from a place that you trust and add that line"
            )
        line = f"{name} {key.get_name()} {key.get_base64()}\n".encode("ascii")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock:
            descriptor = os.open(self._learned, flags, 0o600)
            try:
                os.write(descriptor, line)
                if os.geteuid() == 0:  # by hand, for a daemon that runs as SlurmUser
                    owner = os.stat(os.path.dirname(self._learned))
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _keys_of(path: str, name: str) -> Iterator[paramiko.PKey]:
    """Those that a known_hosts file has for a host, in plain or hashed lines; none where it is absent. Raises OSError.

    Line by line: paramiko's own loader compares each line with all before it, seconds for 3,000 nodes. Lines with a
    marker (@cert-authority, @revoked) and patterns are passed over, as by paramiko."""
    module = _paramiko()
    with suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            hosts, _, rest = line.strip().partition(" ")
            if rest and any(_is_host(module, one, name) for one in hosts.split(",")):
                with suppress(Exception):  # a line that is broken, or of a kind of key that paramiko does not know
                    entry = module.hostkeys.HostKeyEntry.from_line(line.strip())
                    if entry is not None and entry.key is not None:
                        yield entry.key


def _is_host(module: Any, told: str, name: str) -> bool:
    if not told.startswith("|1|"):
        return told == name
    try:
        return bool(module.HostKeys.hash_host(name, told) == told)
    except Exception:  # no base64 in it
        return False


def _policy(visitor: Visitor, target: Target) -> Any:
    class Policy(_paramiko().MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            visitor.unknown_host(target, hostname, key)

    return Policy()


def _paramiko() -> Any:
    try:
        import paramiko
    except ImportError as error:
        raise ConfigError(
            f"ssh.user: paramiko can't be loaded ({error}); pip install 'nccl-slurm[ssh]', or empty the key"
        ) from None
    return paramiko


def _line(text: object) -> str:
    return visible(" ".join(str(text).split()), _TEXT)
