"""Daemons of one scratch folder: started with a pid file and a mark in their environment, and found again by both.

A pid file alone may name a stranger after a reboot or a wrap of pids; a process counts as ours only if its environment
carries the scratch folder's mark. Hooks and jobs get an environment of their own from Slurm: they are known by this
cluster's SLURM_CONF beside a job id (a shell with SLURM_CONF alone is a person's). slurmstepd overwrites its
environment with its title, so it is known by an open file in scratch.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["MARK", "Processes", "free_ports", "wait_until"]

MARK = "NCCL_SLURM_TEST_CLUSTER"
FIRST_PORT = 10_000


#: One a port that was handed out, until this process ends. Nothing is sent there: no other test run can have the name.
_TAKEN: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that are free on all addresses now, and no other test run's. They are drawn from
    those that the system hands to nobody: between this and the start of a daemon thousands of clients connect."""
    ports: list[int] = []
    for port in random.sample(range(FIRST_PORT, _first_of_clients()), 1000):
        with suppress(OSError), socket.create_server(("", port)):
            _take(port)
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no {count} free ports between {FIRST_PORT} and {_first_of_clients()}")


def _take(port: int) -> None:
    """Raises OSError where another test run, or this one, has taken it."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0nccl-slurm-test.{port}")
    except OSError:
        mark.close()
        raise
    _TAKEN.append(mark)


def _first_of_clients() -> int:
    """ip(7), ip_local_port_range; never so low that there is nothing to draw from."""
    told = _read(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()
    return max(int(told[0]) if told else 0, FIRST_PORT + 10_000)


def wait_until(ready: Callable[[], bool], timeout: float, every: float = 0.05) -> bool:
    """Call ``ready`` until it is true (then true) or ``timeout`` seconds have passed (then false)."""
    end = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def _read(path: Path) -> bytes:
    """Content of a file under /proc; empty where the process is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parents() -> dict[int, int]:
    """Pid of each process → pid of its parent. The name in /proc/PID/stat may hold blanks and brackets."""
    parents = {}
    for pid in _all_pids():
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b") ")[2].split()
        if len(fields) > 1 and fields[0] != b"Z":
            parents[pid] = int(fields[1])
    return parents


def _with_descendants(pids: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _ancestors(parents: Mapping[int, int]) -> set[int]:
    """This process and all above it: never to be killed."""
    pid, found = os.getpid(), set()
    while pid and pid not in found:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found


def _opens_below(pid: int, folder: Path) -> bool:
    links = [f"/proc/{pid}/cwd"]
    try:
        links += [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
        return any(os.readlink(link).startswith(f"{folder}/") for link in links)
    except OSError:
        return False


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Processes:
    """The daemons of one scratch folder. Pid files are in ``scratch/pid``, their output is in ``scratch/log``."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start ``command`` (which stays in the foreground) in its own session, output appended to ``log/NAME.out``."""
        with (self.scratch / "log" / f"{name}.out").open("ab") as out:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.scratch,
                env={**env, MARK: str(self.scratch)},
                start_new_session=True,
                umask=0o022,
            )
        self._children[name] = child
        self._pid_file(name).write_text(f"{child.pid}\n")

    def alive(self, name: str) -> bool:
        child = self._children.get(name)
        if child is not None:
            return child.poll() is None
        pid = self.pid(name)
        return pid is not None and self._ours(pid)

    def pid(self, name: str) -> int | None:
        try:
            return int(self._pid_file(name).read_text())
        except (OSError, ValueError):
            return None

    def stop(self, name: str, number: int = signal.SIGTERM, patience: float = 10.0) -> None:
        """Send a signal and wait; after ``patience`` seconds SIGKILL. Not an error when it is gone already."""
        pid = self.pid(name)
        if pid is not None and self.alive(name):
            _signal([pid], number)
            if not wait_until(lambda: not self.alive(name), patience):
                _signal([pid], signal.SIGKILL)
                wait_until(lambda: not self.alive(name), patience)
        self._children.pop(name, None)
        self._pid_file(name).unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End every process of this scratch folder, jobs and detached hook workers included."""
        _signal(self._victims(), signal.SIGTERM)
        if not wait_until(lambda: not self._victims(), 3.0):
            wait_until(self._kill_rest, 10.0)
        for path in (self.scratch / "pid").glob("*.pid"):
            path.unlink()
        for child in self._children.values():
            child.wait(5)  # dead already: this only reaps it
        self._children.clear()

    def _kill_rest(self) -> bool:
        victims = self._victims()
        _signal(victims, signal.SIGKILL)
        return not victims

    def _victims(self) -> set[int]:
        for child in self._children.values():
            child.poll()
        parents = _parents()
        ours = {pid for pid in parents if self._ours(pid)}
        return _with_descendants(ours, parents) - _ancestors(parents)

    def _ours(self, pid: int) -> bool:
        environment = _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        if f"{MARK}={self.scratch}".encode() in environment:
            return True
        ours = f"SLURM_CONF={self.scratch}/etc/slurm.conf".encode() in environment
        if ours and any(entry.startswith(b"SLURM_JOB_ID=") for entry in environment):
            return True
        return _read(Path(f"/proc/{pid}/comm")).startswith(b"slurmstepd") and _opens_below(pid, self.scratch)

    def _pid_file(self, name: str) -> Path:
        return self.scratch / "pid" / f"{name}.pid"
