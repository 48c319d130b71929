"""A virtual node as a machine: the tree that stands before its /proc, /sys and /dev, its processes, its boots.

All virtual nodes share the machine's /proc, in which slurmctld runs too: read there, every node would be a controller
and none could boot alone. So each has a small tree (NCCL_SLURM_SYSROOT) with a boot id and a process list of its own;
what does not differ by node are links to the real files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.processes import wait_until

__all__ = ["add_kernel_lines", "make_tree", "power_off", "processes_of", "show_slurmd", "write_boot"]

#: Path in the tree → what it is a link to.
_SHARED = {
    "dev": "/dev",
    "proc/loadavg": "/proc/loadavg",
    "proc/meminfo": "/proc/meminfo",
    "proc/sys/kernel/osrelease": "/proc/sys/kernel/osrelease",
    "run": "/run",
    "sys": "/sys",
    "tmp": "/tmp",
}


def make_tree(root: Path, node: str) -> None:
    """A machine that has just booted: an init process, no slurmd, nothing kept of a panic."""
    for folder in ("proc/1", "proc/sys/kernel/random", "var/lib/systemd/pstore"):
        (root / folder).mkdir(parents=True)
    for name, target in _SHARED.items():
        (root / name).symlink_to(target)
    (root / "proc/1/comm").write_text("systemd\n")
    (root / "proc/sys/kernel/hostname").write_text(f"{node}\n")
    write_boot(root)


def write_boot(root: Path) -> str:
    """A new boot id, which is returned, and a boot time of now."""
    boot_id = str(uuid.uuid4())
    _replace(root / "proc/stat", f"btime {int(time.time())}\n")
    _replace(root / "proc/sys/kernel/random/boot_id", f"{boot_id}\n")
    return boot_id


def show_slurmd(root: Path, pid: int) -> None:
    """The one real process in the node's list; one of an earlier slurmd leaves it."""
    for link in (root / "proc").glob("[0-9]*"):
        if link.is_symlink():
            link.unlink()
    (root / "proc" / str(pid)).symlink_to(f"/proc/{pid}")


def add_kernel_lines(log: Path, node: str, lines: Sequence[str], at: float | None = None) -> None:
    """As ``journalctl -k -o short-unix`` prints them, all with the time ``at`` (now)."""
    stamp = time.time() if at is None else at
    with log.open("a") as file:
        file.writelines(f"{stamp:.6f} {node} kernel: {line}\n" for line in lines)


def processes_of(scratch: Path, node: str) -> set[int]:
    """slurmd, slurmstepds, tasks, hooks and hook workers of one node.

    Tasks and hooks carry the node's name in their environment. slurmstepd overwrites its own with its title: it and
    slurmd are known by the node's log file, which they hold open.
    """
    wanted = {f"SLURM_CONF={scratch}/etc/slurm.conf".encode(), f"SLURMD_NODENAME={node}".encode()}
    log = str(scratch / "log" / f"slurmd.{node}.log")
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if wanted <= _environment(pid) or _is_daemon(pid, log)}


def power_off(scratch: Path, node: str) -> None:
    """All of the node's processes end at once; none of them can say a word. Raises TimeoutError."""

    def gone() -> bool:
        pids = processes_of(scratch, node)
        for pid in pids:
            _kill(pid)
        return not pids

    if not wait_until(gone, 10.0):
        raise TimeoutError(f"processes of {node} don't end: {sorted(processes_of(scratch, node))}")


def _replace(path: Path, text: str) -> None:
    """At once: a hook that reads meanwhile sees the old text or the new one."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    unfinished.rename(path)


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _is_daemon(pid: int, log: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith("slurm"):
            return False
        return any(os.readlink(f"{folder}/{name}") == log for name in os.listdir(folder))
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
