"""Which slurmd of this host may still run with an older slurm.conf than the one that lies here now.

Nobody can be asked what a slurmd has in force: ``scontrol show config`` is slurmctld's word. One that was started after
the last change of its file has read it; up to 22.05 ``scontrol reconfigure`` leaves no trace on a node. A configless
slurmd writes what it gets into its cache.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator

__all__ = ["CACHES", "PLACES", "Slurmd", "running", "unread"]

CACHES = ("/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")
#: Where slurm.conf may lie when nobody says; the last two are caches of configless nodes.
PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/usr/local/etc/slurm.conf",
    *CACHES,
)
#: The second of the boot in /proc/stat is rounded, and clocks of file servers differ.
_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class Slurmd:
    """``started`` in seconds of the epoch. ``conf``: the file that it was told; empty: its own default."""

    pid: int
    started: float
    conf: str = ""
    conf_server: bool = False

    def files(self, exists: Callable[[str], bool] = os.path.isfile) -> list[str]:
        """Those that it may have read; of a configless one there is none. The order is that of slurmd(8)."""
        if self.conf_server:
            return []
        return [self.conf] if self.conf else [path for path in PLACES if path not in CACHES and exists(path)]


def running(proc: str = "/proc") -> Iterator[Slurmd]:
    boot = _boot_second(proc)
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            stat = _read(f"{proc}/{name}/stat")
            if b"(slurmd) " in stat:
                yield _slurmd(int(name), stat, boot, _words(f"{proc}/{name}/cmdline"), _words(f"{proc}/{name}/environ"))
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue


def _slurmd(pid: int, stat: bytes, boot: float, arguments: list[str], environment: list[str]) -> Slurmd:
    """proc(5): the start is the 22nd field, in ticks after the boot; the name in brackets may hold blanks."""
    ticks = int(stat.rpartition(b") ")[2].split()[19])
    given = re.search(r"\0-f\0?([^\0]+)", "\0".join(["", *arguments]))
    told = [word[len("SLURM_CONF=") :] for word in environment if word.startswith("SLURM_CONF=")]
    conf = given.group(1) if given else "".join(told[:1])
    server = any(word.startswith("--conf-server") for word in arguments)
    return Slurmd(pid, boot + ticks / os.sysconf("SC_CLK_TCK"), conf, server)


def _boot_second(proc: str) -> float:
    found = re.search(rb"^btime (\d+)$", _read(f"{proc}/stat"), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def _words(path: str) -> list[str]:
    return _read(path).decode("utf-8", "surrogateescape").split("\0")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def unread(slurmd: Slurmd, files: Iterable[str], cached: bool) -> str:
    """Why it may run with older lines than those of ``files`` (what it has read, with all includes); empty: it can't.

    ``cached``: this host has the cache of a configless slurmd.
    """
    since = f"slurmd (pid {slurmd.pid}, since {_local(slurmd.started)})"
    changed = {path: _changed(path) for path in files}
    if not changed:
        return "" if cached else f"{since}: its slurm.conf is not found"
    newest = max(changed, key=lambda path: changed[path])
    if changed[newest] < slurmd.started - _TOLERANCE_S:
        return ""
    at = f"{newest} ({_local(changed[newest])}), and may run with the lines before that"
    if changed[newest] > slurmd.started:
        return f"{since} is older than {at}"
    return f"{since} began within {_TOLERANCE_S:g} s of the last change of {at}"


def _changed(path: str) -> float:
    """The change of the inode: a copy that keeps the old modification time is still a change."""
    info = os.stat(path)
    return max(info.st_mtime, info.st_ctime)


def _local(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
