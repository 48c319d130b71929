"""What runs on a node: reads what a manifest asks for and prints one JSON object. Reads only, as any user.

This one file is sent as text to nodes on which nothing is installed: standard library alone, Python 3.8 or newer. The
manifest (`doctor.sources.manifest`) names files, commands and readers; each belongs to a *lane*. A lane is a forked
process that works one after the other: what hangs there (a GPU driver, a file system) costs the rest of its lane alone,
and is left behind. A step that leaves a process which can't be killed may get its node drained by Slurm
(UnkillableStepTimeout): so a GPU driver in which a process is stuck already is not asked.

Answer: ``{"observation": 1, "found": {key: {...}}, ...}``. Of a key: ``why`` where it was not observed, else of files
``texts cut unread more``, of a command ``rc out err cut``, of a reader ``value``.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

#: Before the packed answer, in a line of its own: a login shell may print what it likes.
MARK = "nccl-slurm-observation "
#: EFA's own first: a distribution's fi_info may know no EFA.
FOLDERS = (
    "/opt/amazon/efa/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/local/cuda/bin",
    "/opt/slurm/bin",
    "/opt/mellanox/bin",
    "/opt/bin",
)
#: Names whose values are read from a process: none of them is a place for secrets.
ENVIRONMENT = re.compile(
    r"(?:NCCL|FI|OFI|TORCH|CUDA|GLOO|UCX|EFA|RDMAV|NVSHMEM|MASTER|TORCHELASTIC|OMPI_COMM_WORLD|PYTORCH)_[A-Z0-9_]+"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|LD_LIBRARY_PATH|LD_PRELOAD|OMP_NUM_THREADS"
    r"|SLURM_(?:JOB_ID|STEP_ID|PROCID|LOCALID|NODEID|NTASKS|JOB_NUM_NODES|JOB_GPUS|STEP_GPUS|GPUS_ON_NODE|NODELIST)"
    r"|SLURMD_NODENAME|PMIX_RANK|PMI_RANK"
)
LIBRARY = re.compile(
    r"/lib(?:nccl|cuda|cudart|fabric|ibverbs|efa|mlx5|torch_cuda|mpi|ucp|gdrapi|nvidia-ml)[-._\w]*\.so"
)
#: What a library says of itself (NCCL src/init.cc VERSION_STRING; aws-ofi-nccl's PACKAGE_STRING).
VERSIONS = (b"NCCL version ", b"aws-ofi-nccl ")
_NUMBER = re.compile(rb"\d+\.\d+\.\d+[\w.+-]{0,30}")
JOB = re.compile(r"/job_(\d{1,10})(?:/|$)", re.MULTILINE)
#: A cgroup that tells no job: of a container's own, or out of this cgroup namespace.
CONTAINER = re.compile(r"docker|containerd|libpod|podman|kubepods|crio|lxc|:/$|:/\.\.", re.MULTILINE)
_KMSG = re.compile(r"[0-7],[0-9]+,([0-9]+),[^;]*;(.*)\Z")
_TEXT = 400
#: Of one process: bytes of its environment that are read, JSON of it that is kept, libraries. Anybody may have more.
_ENVIRON, _SETTINGS, _LIBRARIES = 1 << 18, 1 << 15, 64
#: Bytes of the kernel log that are read.
_KERNEL_LOG = 1 << 25


class Unseen(Exception):
    """Not observed; ``str()`` is why."""


class Place(NamedTuple):
    """``root`` stands before /proc, /sys ... and ``bin`` in the place of the fixed folders: both empty but in tests."""

    root: str
    bin: str
    job: str | None

    def under(self, path: str) -> str:
        return self.root + path

    def shown(self, path: str) -> str:
        return path[len(self.root) :] if self.root and path.startswith(self.root) else path


# files


def take_files(place: Place, source: Mapping[str, Any]) -> dict[str, Any]:
    """``take``: text, link (its target), names (of a folder), or stat (``octal-mode uid gid size mtime``)."""
    found = _matching(place, source["globs"])
    texts: dict[str, str] = {}
    cut: list[str] = []
    unread: dict[str, str] = {}
    for path in found[: source["most"]]:
        try:
            text, whole = _TAKES[source["take"]](path, source["bytes"])
        except OSError as error:
            unread[place.shown(path)] = error.strerror or str(error)
            continue
        texts[place.shown(path)] = text
        if not whole:
            cut.append(place.shown(path))
    for pattern in source["globs"]:
        why = "" if _matching(place, [pattern]) else _closed(place, pattern)
        if why:
            unread[pattern] = why
    return {"texts": texts, "cut": cut, "unread": unread, "more": len(found) > source["most"]}


def _matching(place: Place, patterns: Sequence[str]) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        if glob.has_magic(pattern):
            found += sorted(glob.glob(glob.escape(place.root) + pattern))
        elif os.path.lexists(place.under(pattern)):
            found.append(place.under(pattern))
    return list(dict.fromkeys(found))


def _closed(place: Place, pattern: str) -> str:
    """Why nothing can be said of a path that seems not to be there; empty where it certainly is not."""
    path = "/"
    for part in pattern.strip("/").split("/"):
        try:
            if glob.has_magic(part):
                os.listdir(place.under(path))
                return ""
            path = os.path.join(path, part)
            os.stat(place.under(path))
        except PermissionError as error:
            return error.strerror or "may not be read"
        except OSError:
            return ""
    return ""


def _text(path: str, most: int) -> tuple[str, bool]:
    """Never waits for a writer of a pipe. sysfs and procfs give no size: read until the end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        data = b""
        while len(data) <= most:
            part = os.read(descriptor, most + 1 - len(data))
            if not part:
                break
            data += part
    finally:
        os.close(descriptor)
    return data[:most].decode("utf-8", "backslashreplace"), len(data) <= most


def _tail(path: str, most: int) -> tuple[str, bool]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode("utf-8", "backslashreplace"), size <= most


def _names(path: str, most: int) -> tuple[str, bool]:
    text = "\n".join(sorted(os.listdir(path)))
    return text[:most], len(text) <= most


def _stat(path: str, _most: int) -> tuple[str, bool]:
    info = os.stat(path)
    return "%o %d %d %d %.3f" % (info.st_mode, info.st_uid, info.st_gid, info.st_size, info.st_mtime), True  # noqa: UP031 # 3.8


_TAKES: dict[str, Callable[[str, int], tuple[str, bool]]] = {
    "text": _text,
    "tail": _tail,
    "link": lambda path, most: (os.readlink(path)[:most], True),
    "names": _names,
    "stat": _stat,
}

# commands


def program(place: Place, name: str) -> str:
    """Absolute path from the fixed folders, never from PATH. Raises Unseen."""
    places = [os.path.join(folder, os.path.basename(name)) for folder in ([place.bin] if place.bin else FOLDERS)]
    for path in places:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            info = os.stat(path)
            if os.geteuid() == 0 and not place.bin and (info.st_uid != 0 or info.st_mode & 0o002):
                raise Unseen(f"{path} is not root's own: not run as root")
            return path
    raise Unseen(f"{name}: not found on this node")


def take_command(place: Place, source: Mapping[str, Any]) -> dict[str, Any]:
    argv = [program(place, source["argv"][0]), *source["argv"][1:]]
    environment = {"LC_ALL": "C", "TZ": "UTC", "HOME": "/", "PATH": ":".join([*filter(None, [place.bin]), *FOLDERS])}
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,
    ) as child:
        _running.append(child.pid)
        try:
            out, err, why = _both(child, source["seconds"], source["bytes"])
            code = _end(child, why is None)
        finally:
            _running.remove(child.pid)
        if why or code is None:
            child.returncode = child.returncode or -9  # leaving `with` must not wait for what can't be killed
            raise Unseen(f"{source['argv'][0]}: {why or 'can not be ended'}")
    most = source["bytes"]
    return {"rc": code, "out": _decoded(out[:most]), "err": _decoded(err[:most]), "cut": max(len(out), len(err)) > most}


#: Process groups of commands that this lane runs, for the signal that ends it.
_running: list[int] = []


def _both(child: Any, seconds: float, most: int) -> tuple[bytes, bytes, str | None]:
    """Standard output and error, read at once; reading stops where one of them is larger than ``most``."""
    parts = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    opened, end = list(parts), time.monotonic() + seconds
    why = None
    while opened:
        ready, _, _ = select.select(opened, [], [], max(0.0, end - time.monotonic()))
        if not ready:
            why = f"no answer within {seconds:g} s"
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 16)
            parts[pipe] += data
            if not data:
                opened.remove(pipe)
        if max(map(len, parts.values())) > most:
            break
    return bytes(parts[child.stdout.fileno()]), bytes(parts[child.stderr.fileno()]), why


def _end(child: Any, by_itself: bool) -> int | None:
    """Its status; killed with its group where it does not end. None where it can't be."""
    for seconds in (1.0, 1.0) if by_itself else (0.0, 1.0):
        try:
            return int(child.wait(timeout=seconds))
        except subprocess.TimeoutExpired:
            _kill(child.pid)
    return None


def _kill(group: int) -> None:
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


# processes


def pids(place: Place) -> list[int]:
    return sorted(int(name) for name in os.listdir(place.under("/proc")) if name.isdigit())


def of_file(place: Place, path: str, most: int = 1 << 16) -> str:
    """Empty where it can't be read."""
    try:
        return _text(place.under(path), most)[0]
    except OSError:
        return ""


def of_process(place: Place, pid: int, name: str, most: int = 1 << 16) -> str:
    """Empty where it is gone, or not ours to read."""
    return of_file(place, f"/proc/{pid}/{name}", most)


class Stat(NamedTuple):
    comm: str
    state: str
    parent: int
    start: float


def stat_of(place: Place, pid: int, boot: float) -> Stat | None:
    """``start``: seconds since 1970. A comm may hold blanks and brackets."""
    head, _, rest = of_process(place, pid, "stat", 4096).rpartition(")")
    words = rest.split()
    try:
        start = boot + int(words[19]) / os.sysconf("SC_CLK_TCK")
        return Stat(head.partition("(")[2], words[0], int(words[1]), start)
    except (IndexError, ValueError):
        return None


def job_of(place: Place, pid: int, environment: Mapping[str, str] | None = None) -> str | None:
    """By its cgroup, which it can't choose; else by its environment."""
    found = JOB.search(of_process(place, pid, "cgroup", 1 << 14))
    return found.group(1) if found else (environment or {}).get("SLURM_JOB_ID")


class Claims:
    """Whose word on its job counts. Where Slurm puts jobs into cgroups, a process outside of them is of the job that
    its environment names only if it is of that job's user, or in a container."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owners: dict[str, set[int | None]] = {}
        for pid in pids(place):
            job = job_of(place, pid)
            if job is not None and stat_of(place, pid, 0.0) is not None:
                self._owners.setdefault(job, set()).add(owner_of(place, pid))

    def any(self) -> bool:
        """Whether a job is seen here at all."""
        return bool(self._owners)

    def job_of(self, pid: int, environment: Mapping[str, str]) -> str | None:
        job = job_of(self._place, pid)
        claimed = environment.get("SLURM_JOB_ID")
        if job is not None or claimed is None or not self._owners:
            return job or claimed
        if owner_of(self._place, pid) in self._owners.get(claimed, ()):
            return claimed
        return claimed if CONTAINER.search(of_process(self._place, pid, "cgroup", 1 << 14)) else None


def environment_of(place: Place, pid: int) -> dict[str, str]:
    return _settings(place, pid)[0]


def _settings(place: Place, pid: int) -> tuple[dict[str, str], bool]:
    """And whether these are all: of too many the shortest are kept."""
    text = of_process(place, pid, "environ", _ENVIRON)
    pairs = [word.partition("=") for word in text.split("\0")]
    found = {name: value[:4096] for name, _, value in pairs if ENVIRONMENT.fullmatch(name)}
    sizes = {name: len(json.dumps([name, value])) for name, value in found.items()}
    left = _SETTINGS
    for name in sorted(sizes, key=lambda name: sizes[name]):
        left -= sizes[name]
        if left < 0:
            del found[name]
    return found, left >= 0 and len(text) < _ENVIRON


def boot_time(place: Place) -> float:
    """Seconds since 1970; 0.0 where it can't be read."""
    found = re.search(r"^btime (\d+)", of_file(place, "/proc/stat", 1 << 22), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def owner_of(place: Place, pid: int) -> int | None:
    try:
        return os.stat(place.under(f"/proc/{pid}")).st_uid
    except OSError:
        return None


_HIDDEN = (
    "other processes are hidden (proc mounted with hidepid, or a PID namespace of its own): look as root on the host"
)


def hidden(place: Place, *above: str) -> str:
    """Why there may be processes on this host that are not seen here; else empty. The kernel's own first thread is
    always there, and of root. ``above``: programs that do as well, since all that are looked for are below them."""
    if (stat_of(place, 2, 0.0) or Stat("", "", 0, 0.0)).comm == "kthreadd":
        return ""
    seen = any(of_process(place, pid, "comm", 64).strip() in above for pid in pids(place)) if above else False
    return "" if seen else _HIDDEN


# readers: (place, options) -> what JSON can hold; raise Unseen or OSError


def ranks(place: Place, options: Mapping[str, Any]) -> Any:
    """Processes of the job that look like ranks: those with a communication library or a rank in their environment,
    without the workers that they forked. ``cut``: it has more settings or libraries than these. ``unreadable``:
    processes of the job, or of unknown job, of other users. ``hidden``: see there."""
    boot, unreadable, claims = boot_time(place), 0, Claims(place)
    kept: dict[int, dict[str, Any]] = {}
    for pid in pids(place):
        environment, whole = _settings(place, pid)
        job, stat = claims.job_of(pid, environment), stat_of(place, pid, boot)
        if stat is None or stat.comm == "slurmstepd" or (place.job and job not in (place.job, None)):
            continue
        if not environment and not of_process(place, pid, "environ", 16):
            unreadable += job is not None and place.job in (job, None)
            continue
        if (place.job and job != place.job) or _is_us(place, pid) or _is_elsewhere(environment):
            continue
        libraries = sorted(set(_mapped(place, pid)))
        if libraries or _rank_in(environment) is not None:
            cut = not whole or len(libraries) > _LIBRARIES
            told = {"pid": pid, "job": job, "environment": environment, "libraries": libraries[:_LIBRARIES], "cut": cut}
            kept[pid] = {**told, **stat._asdict()}
    own = [row for row in kept.values() if not _is_worker(row, kept)]
    first = own[: options.get("most", 128)]
    files: dict[str, Any] = {}
    for row in first:
        row["limits"] = of_process(place, row["pid"], "limits", 1 << 14)
        row["command"] = of_process(place, row["pid"], "cmdline", _TEXT).replace("\0", " ").strip()
        row["uid"] = owner_of(place, row["pid"])
        row["shm"] = _room(place.under(f"/proc/{row['pid']}/root/dev/shm"))
        row["listens"] = (_listens(place, row["pid"]) or [])[:256]
        for path in row["libraries"]:
            files.setdefault(path, None)
            files[path] = files[path] or _library(place, row["pid"], path)
    return {
        "ranks": first,
        "more": len(own) - len(first),
        "unreadable": unreadable,
        "libraries": files,
        "hidden": hidden(place, "slurmd"),
    }


def _ranks_of(place: Place, setting: str = "") -> Iterator[tuple[int, str | None, dict[str, str]]]:
    """Pid, job and environment of each rank (with the setting) of the job, or of all jobs: what others have in their
    environment (a login shell, a stale export) is of no matter. Job None: on a host without Slurm's jobs."""
    claims = Claims(place)
    for pid in pids(place):
        environment = environment_of(place, pid)
        job = claims.job_of(pid, environment)
        if place.job not in (None, job) or (job is None and claims.any()) or _is_us(place, pid):
            continue
        if setting and setting not in environment:
            continue
        if _rank_in(environment) is not None or next(_mapped(place, pid), None):
            yield pid, job, environment


def _is_us(place: Place, pid: int) -> bool:
    return "NCCL_SLURM_DOCTOR=" in of_process(place, pid, "environ", 1 << 16)


def _mapped(place: Place, pid: int) -> Iterator[str]:
    for line in of_process(place, pid, "maps", 8 << 20).splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and LIBRARY.search(words[5]):
            yield words[5]


def _rank_in(environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK") if name in environment), None)


def _is_worker(row: Mapping[str, Any], kept: Mapping[int, Mapping[str, Any]]) -> bool:
    above = kept.get(row["parent"])
    return above is not None and _rank_in(above["environment"]) == _rank_in(row["environment"]) is not None


def _library(place: Place, pid: int, path: str) -> dict[str, Any] | None:
    """As the process sees it, so in its container. ``said``: the version that the file itself names."""
    bare = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
    seen = place.under(f"/proc/{pid}/root{bare}")
    try:
        info = os.stat(seen)
        said = None
        if re.search(r"/libnccl", bare) and (place.root or os.geteuid() != 0 or _is_mapped(place, pid, path, info)):
            said = _said(seen, info.st_size)
        real = os.path.basename(os.path.realpath(seen))
    except OSError:
        return None
    return {"real": real, "size": info.st_size, "inode": info.st_ino, "mtime": info.st_mtime, "said": said}


def _is_mapped(place: Place, pid: int, path: str, info: os.stat_result) -> bool:
    """Whether it is the very file that the process has mapped, and no link that was put in its place: root reads no
    other one of a user's."""
    device = "%02x:%02x" % (os.major(info.st_dev), os.minor(info.st_dev))  # noqa: UP031 # 3.8
    for line in of_process(place, pid, "maps", 8 << 20).splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5] == path and (words[3], words[4]) == (device, str(info.st_ino)):
            return True
    return False


def _said(path: str, size: int, most: int = 1 << 30) -> str | None:
    import mmap

    if not 0 < size < most:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for words in VERSIONS:
            at = data.find(words)
            while at >= 0:
                found = _NUMBER.match(data, at + len(words))
                if found:
                    return found.group().decode("ascii")
                at = data.find(words, at + 1)
    return None


def _listens(place: Place, pid: int) -> list[int] | None:
    """TCP ports on which the process listens, in its own network. None where that can't be seen."""
    try:
        descriptors = os.scandir(place.under(f"/proc/{pid}/fd"))
        links = {os.readlink(one.path) for one in descriptors}
    except OSError:
        return None
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in of_process(place, pid, table, 4 << 20).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def _room(path: str) -> dict[str, int] | None:
    """Bytes; ``available`` is what an ordinary user may still take."""
    try:
        info = os.statvfs(path)
    except OSError:
        return None
    size = info.f_frsize
    return {
        "size": info.f_blocks * size,
        "free": info.f_bfree * size,
        "available": info.f_bavail * size,
        "inodes": info.f_files,
        "inodes_free": info.f_ffree,
    }


def daemons(place: Place, options: Mapping[str, Any]) -> Any:
    """Processes by name: limits, since when, of whom."""
    boot, rows = boot_time(place), []
    for pid in pids(place):
        if of_process(place, pid, "comm", 64).strip() in options["names"]:
            stat = stat_of(place, pid, boot)
            if stat is not None:
                limits = of_process(place, pid, "limits", 1 << 14)
                rows.append({"pid": pid, "uid": owner_of(place, pid), "limits": limits, **stat._asdict()})
    return rows[:256]


def stuck(place: Place, _options: Mapping[str, Any]) -> Any:
    """Processes in uninterruptible sleep at two looks. ``gpu``: it has the driver open; None: that can't be seen.
    ``driver``: it sleeps in the GPU driver; None: that can't be told."""
    first = _asleep(place)
    if first:
        time.sleep(0.0 if place.root else 1.0)
    again = _asleep(place) if first else {}
    return [
        {
            "pid": pid,
            "comm": comm,
            "uid": owner_of(place, pid),
            "job": job_of(place, pid),
            "wchan": of_process(place, pid, "wchan", 100),
            "gpu": _holds_gpu(place, pid),
            "driver": _in_driver(place, pid, comm),
        }
        for pid, comm in first.items()
        if again.get(pid) == comm
    ][:256]


#: Functions that sleep for storage, the network or memory, not for a GPU; and those of NVIDIA's modules. The kernel
#: names the first one that is not its scheduler's own: a lock may be anybody's.
_ELSEWHERE = re.compile(
    r"folio|page|io_schedule|bit_wait|wait_on_|buffer|bio|blk|submit|jbd2|journal|xfs|ext4|btrfs|xlog|nfs|rpc|lustre|ll_"
    r"|cl_|osc_|ldlm|ptlrpc|ceph|gpfs|cxi|fuse|request_wait|wekafs|beegfs|inode|dquot|nvme_|scsi|md_|raid|swap|iget"
)
_DRIVER = re.compile(r"_?nv[A-Z_]|nvidia|uvm_|os_acquire|rm_|Uvm")
_OF_DRIVER = re.compile(r"nvidia|nv-|nvc|dcgm")


def _in_driver(place: Place, pid: int, comm: str) -> bool | None:
    """By its kernel stack, which root may read, else by the function that it sleeps in, and by what it has open."""
    stack = of_process(place, pid, "stack")
    wchan = of_process(place, pid, "wchan", 100).strip()
    if re.search(r"\[(?:nvidia|nvidia_uvm|nvidia_modeset|nvidia_drm)\]", stack) or _DRIVER.match(wchan):
        return True
    if stack or _ELSEWHERE.search(wchan) or (_holds_gpu(place, pid) is False and not _OF_DRIVER.match(comm)):
        return False
    return None


def _asleep(place: Place) -> dict[int, str]:
    stats = ((pid, stat_of(place, pid, 0.0)) for pid in pids(place))
    return {pid: stat.comm for pid, stat in stats if stat is not None and stat.state == "D"}


def _devices_of(place: Place, pid: int) -> list[str] | None:
    """NVIDIA's devices that it has open; None: that can't be seen."""
    try:
        links = [os.readlink(one.path) for one in os.scandir(place.under(f"/proc/{pid}/fd"))]
    except OSError:
        return None
    return sorted({link for link in links if link.startswith("/dev/nvidia")})


def _holds_gpu(place: Place, pid: int) -> bool | None:
    found = _devices_of(place, pid)
    return None if found is None else bool(found)


def gpu_holders(place: Place, _options: Mapping[str, Any]) -> Any:
    """Processes with a GPU's device open. ``unreadable``: processes of others, of which that can't be told.

    ``computes``: it has unified memory's device open, as all programs of CUDA; those that only read counters have not.
    ``cgroup``: where it stands. ``claims``: the job that its environment names, which it may have made up.
    ``hidden``: see there.
    """
    boot, rows, unreadable = boot_time(place), [], 0
    for pid in pids(place):
        devices = _devices_of(place, pid)
        unreadable += devices is None
        stat = stat_of(place, pid, boot) if devices else None
        if stat is not None:
            more = {
                "computes": any(one.startswith("/dev/nvidia-uvm") for one in devices or ()),
                "cgroup": of_process(place, pid, "cgroup", 1 << 14).strip()[-_TEXT:],
                "claims": environment_of(place, pid).get("SLURM_JOB_ID"),
            }
            rows.append({"pid": pid, "uid": owner_of(place, pid), "job": job_of(place, pid), **more, **stat._asdict()})
    rest = max(0, len(rows) - 512)
    return {"processes": rows[:512], "unreadable": unreadable, "more": rest, "hidden": hidden(place)}


def shm_files(place: Place, options: Mapping[str, Any]) -> Any:
    """Files in /dev/shm and who has them mapped. ``unreadable``: processes whose maps can't be read. ``hidden``: see
    there."""
    paths = _matching(place, options["globs"])[:512]
    mapped: dict[str, list[int]] = {}
    unreadable = 0
    for pid in pids(place) if paths else []:
        try:
            text = _text(place.under(f"/proc/{pid}/maps"), 8 << 20)[0]
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError:
            unreadable += 1
            continue
        for path in set(re.findall(r"(/dev/shm/\S+)", text)):
            mapped.setdefault(path, []).append(pid)
    rows = []
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            continue
        shown = place.shown(path)
        row = {"path": shown, "uid": info.st_uid, "size": info.st_size, "mtime": info.st_mtime}
        rows.append({**row, "holders": mapped.get(shown, [])[:20]})
    return {"files": rows, "unreadable": unreadable, "hidden": hidden(place)}


def mounts(place: Place, options: Mapping[str, Any]) -> Any:
    """``table``: device, path, type, options. ``room``: of the paths asked for that exist."""
    text = _text(place.under("/proc/self/mounts"), 1 << 20)[0]
    table = [line.split()[:4] for line in text.splitlines()][:2000]
    rooms = {path: _room(place.under(path)) for path in options["paths"]}
    return {"table": table, "room": {path: room for path, room in rooms.items() if room is not None}}


def names(place: Place, options: Mapping[str, Any]) -> Any:
    """Resolves the names that jobs' ranks go by (MASTER_ADDR), and those asked for. ``jobs``: whose ranks; ``more``: so
    many names of jobs are left out, of each job those that the fewest of its ranks go by; ``asked``: the one job."""
    by_job: dict[str | None, dict[str, int]] = {}
    for _, job, environment in _ranks_of(place, "MASTER_ADDR"):
        counts = by_job.setdefault(job, {})
        counts[environment["MASTER_ADDR"]] = counts.get(environment["MASTER_ADDR"], 0) + 1
    turns = [
        (turn, job or "", name)
        for job, counts in by_job.items()
        for turn, name in enumerate(sorted(counts, key=lambda name: (-counts[name], name)))
    ]
    wanted: dict[str, list[str]] = {name: [] for name in options.get("names", ())}
    for _, job, name in sorted(turns):
        if name in wanted or len(wanted) < 16:
            wanted.setdefault(name, []).append(job)
    with ThreadPoolExecutor(16) as pool:
        found = dict(zip(wanted, pool.map(_resolved, wanted)))
    more = len({name for _, _, name in turns} - set(wanted))
    rows = {name: {**one, "jobs": wanted[name][:16]} for name, one in found.items()}
    return {"names": rows, "more": more, "asked": place.job}


def _resolved(name: str) -> dict[str, Any]:
    """``code``: of getaddrinfo (EAI_...), None where the name is none at all."""
    start = time.monotonic()
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        code = error.errno if isinstance(error, socket.gaierror) else None
        return {"why": str(error), "code": code, "seconds": round(time.monotonic() - start, 3)}
    return {"addresses": sorted({str(one[4][0]) for one in found}), "seconds": round(time.monotonic() - start, 3)}


_RAS = "localhost:28028"


def ras(place: Place, options: Mapping[str, Any]) -> Any:
    """NCCL's RAS of each job with ranks here, where its ranks have it (NCCL_RAS_ADDR): greeting alone, or with
    ``status`` its whole answer, for which it asks all other ranks of the job: so that is asked on one node only.
    ``why``: it was not heard."""
    by_job: dict[str | None, dict[str, list[int]]] = {}
    for pid, job, environment in _ranks_of(place):
        by_job.setdefault(job, {}).setdefault(environment.get("NCCL_RAS_ADDR", _RAS), []).append(pid)
    if not by_job:
        raise Unseen("no rank is seen here")
    rows = []
    for job, told in list(by_job.items())[:8]:
        where = max(told, key=lambda one: len(told[one]))
        row = {"job": job, "address": where[:_TEXT]}
        try:
            rows.append({**row, **_ask_ras(place, where, told[where], bool(options.get("status")))})
        except (Unseen, OSError, OverflowError) as error:
            rows.append({**row, "why": str(error)[:_TEXT]})
    return rows


def _ask_ras(place: Place, where: str, ranks: Sequence[int], status: bool) -> dict[str, Any]:
    """Words as in NCCL src/ras/client.cc. The job's owner chose the address: nothing is sent to anybody but a rank of
    that job on this host."""
    host, _, port = where.rpartition(":")
    if not (host and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16):
        raise Unseen(f"NCCL_RAS_ADDR={where} is no host and port")
    listens = [one for one in (_listens(place, pid) for pid in ranks) if one is not None]
    if any(_has_own_network(place, pid) for pid in ranks):
        raise Unseen("the ranks are in a network of their own")
    if listens and not any(int(port) in ports for ports in listens):
        raise Unseen(
            f"no rank of the job listens at {where}: NCCL before 2.24, NCCL_RAS_ENABLE=0, or no communicator now"
        )
    answer = ""
    with _connected(host.strip("[]"), int(port)) as server:
        server.sendall(b"CLIENT PROTOCOL 2\n")
        greeting = server.recv(200).decode("utf-8", "backslashreplace").strip()
        if not greeting.startswith("SERVER PROTOCOL"):
            raise Unseen(f"{where}: what listens there is no RAS of NCCL")
        if status:
            server.sendall(b"TIMEOUT 8\n")
            server.recv(200)
            server.sendall(b"VERBOSE STATUS\n")
            answer = _rest(server, time.monotonic() + 10.0, 1 << 20)
    return {"greeting": greeting, "status": answer}


def _connected(host: str, port: int) -> socket.socket:
    """To an address of this host alone: only from such a one a connection can begin (bind). Raises Unseen."""
    why = f"{host} is no address"
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        server = socket.socket(family, kind, protocol)
        server.settimeout(5.0)
        try:
            server.bind((address[0], 0))
        except OSError:
            why = f"{host} is no address of this host"
            server.close()
            continue
        try:
            server.connect(address)
            return server
        except OSError as error:
            why = f"{host}:{port}: {error.strerror or error}"
            server.close()
    raise Unseen(f"{why} (NCCL before 2.24, NCCL_RAS_ENABLE=0, or no communicator now)")


def _has_own_network(place: Place, pid: int) -> bool:
    try:
        return os.stat(place.under(f"/proc/{pid}/ns/net")).st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return False


def _rest(server: socket.socket, end: float, most: int) -> str:
    data = b""
    while len(data) < most:
        server.settimeout(max(0.1, end - time.monotonic()))
        part = server.recv(1 << 16)
        if not part:
            break
        data += part
    return data.decode("utf-8", "backslashreplace")


def kernel(place: Place, options: Mapping[str, Any]) -> Any:
    """Records of this boot that match one of ``patterns``: ``[seconds since 1970, text]``, the newest ``most``.

    ``first``: the oldest record that was read; much later than ``boot`` means that what earlier ones said is not known.
    ``cut``: there are more that match, older than these. ``part``: why newer ones may be missing, else empty.
    """
    boot = boot_time(place)
    why = ""
    try:
        (records, part), source = _journal(place, options.get("bytes", _KERNEL_LOG)), "journalctl -k -b"
    except Unseen as error:
        why, source = str(error), "/dev/kmsg"
        records, part = _ring(place, boot, why)
    wanted = [re.compile(pattern, re.IGNORECASE) for pattern in options["patterns"]]
    lines = [[at, text[:_TEXT]] for at, text in records if any(one.search(text) for one in wanted)]
    most = options.get("most", 500)
    cut = len(lines) > most
    first = min(at for at, _ in records)
    return {"source": source, "boot": boot, "first": first, "lines": lines[-most:], "cut": cut, "part": part}


def _journal(place: Place, most: int) -> tuple[list[tuple[float, str]], str]:
    """Read from its newest record back, so that what is too much is the oldest; returned oldest first."""
    if place.root and not place.bin:
        raise Unseen("no journal")
    argv = ["journalctl", "-k", "-b", "-r", "-o", "json", "--output-fields=MESSAGE,SYSLOG_FACILITY", "--no-pager", "-q"]
    answer = take_command(place, {"argv": argv, "seconds": 20.0, "bytes": most})
    records = []
    for line in answer["out"].split("\n"):
        try:
            value = json.loads(line)
            if value["SYSLOG_FACILITY"] == "0":  # programs' messages may stand there too (ForwardToKMsg)
                records.append((int(value["__REALTIME_TIMESTAMP"]) / 1e6, " ".join(str(value["MESSAGE"]).split())))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    if not records:
        raise Unseen(f"journalctl: {answer['err'].strip()[:200] or 'no kernel line that this user may read'}")
    part = ""
    if answer["cut"] and records[0][0] < records[-1][0]:
        part = "journalctl gave its oldest lines first, and more than are read"
    elif answer["rc"] != 0 and not answer["cut"]:
        said = answer["err"].strip()[:200]
        part = f"journalctl ended with status {answer['rc']}" + (f": {said}" if said else "")
    records.reverse()
    return sorted(records, key=lambda record: record[0]), part


def _ring(place: Place, boot: float, why: str) -> tuple[list[tuple[float, str]], str]:
    records, size = [], 0
    try:
        descriptor = os.open(place.under("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unseen(f"{why}; /dev/kmsg: {error.strerror}") from None
    with open(descriptor, "rb", buffering=0) as ring:
        while size < _KERNEL_LOG:
            try:
                data = os.read(ring.fileno(), 8192 if not place.root else _KERNEL_LOG)
            except BrokenPipeError:  # overwritten while we read: the next one follows
                continue
            except OSError:
                break
            if not data:
                break
            size += len(data)
            records += [match for match in map(_KMSG.match, _decoded(data).split("\n")) if match]
    if not records:
        raise Unseen(f"{why}; /dev/kmsg holds nothing that this user may read")
    told = [(boot + int(one.group(1)) / 1e6, " ".join(one.group(2).replace("\\x0a", " ").split())) for one in records]
    return told, "/dev/kmsg holds more than is read" if size >= _KERNEL_LOG else ""


READERS: dict[str, Callable[[Place, Mapping[str, Any]], Any]] = {
    one.__name__: one for one in (daemons, gpu_holders, kernel, mounts, names, ranks, ras, shm_files, stuck)
}


def take_reader(place: Place, source: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": READERS[source["name"]](place, source["options"])}


# lanes


_KINDS: dict[str, Callable[[Place, Mapping[str, Any]], dict[str, Any]]] = {
    "files": take_files,
    "command": take_command,
    "reader": take_reader,
}


def taken(place: Place, source: Mapping[str, Any]) -> dict[str, Any]:
    """Never raises."""
    try:
        return _KINDS[source["kind"]](place, source)
    except Unseen as error:
        return {"why": str(error)}
    except OSError as error:
        return {"why": f"{error.filename or source.get('name') or 'read'}: {error.strerror or error}"}
    except Exception as error:  # a fault of a reader must not cost its lane
        return {"why": f"{type(error).__name__}: {error}"[:_TEXT]}


class Lane:
    """A process that takes its sources in order and writes each as one line of JSON."""

    def __init__(self, place: Place, name: str, sources: Mapping[str, Mapping[str, Any]]) -> None:
        self.keys, self._data, self.over = list(sources), b"", False
        self.name = name
        self.pipe, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(place, sources, writable)
        os.close(writable)

    def _work(self, place: Place, sources: Mapping[str, Mapping[str, Any]], writable: int) -> None:
        signal.signal(signal.SIGTERM, _leave)
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            why = _stuck_driver(place) if self.name == "gpu" else ""
            for source in sources.values():
                result = {"why": why} if why else taken(place, source)
                line = memoryview(json.dumps(result).encode("ascii") + b"\n")
                while line:
                    line = line[os.write(writable, line) :]
                if self.name == "gpu" and "no answer within" in result.get("why", ""):
                    why = f"not asked: {result['why']}"
        finally:
            os._exit(0)

    def read(self) -> None:
        data = os.read(self.pipe, 1 << 20)
        self._data += data
        self.over = not data

    def answers(self, limit_s: float) -> dict[str, Any]:
        lines = self._data.split(b"\n")[:-1]
        found: dict[str, Any] = {key: json.loads(line) for key, line in zip(self.keys, lines)}
        left = self.keys[len(lines) :]
        ended = "the reading process ended" if self.over else f"no answer within the {limit_s:g} s for a node"
        for number, key in enumerate(left):
            found[key] = {"why": ended if number == 0 else f"not asked: {left[0]} before it gave no answer"}
        return found

    def close(self) -> None:
        """What can't be ended is left behind."""
        os.close(self.pipe)
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if not self.over:
                os.kill(self.pid, kind)
            for _ in range(50):
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return
                time.sleep(0.01)


def _leave(_number: int, _frame: Any) -> None:
    for group in _running:
        _kill(group)
    os._exit(0)


def _stuck_driver(place: Place) -> str:
    """Why the GPU driver is better not asked: a question that gets stuck too can't be ended by anybody."""
    for row in stuck(place, {}):
        where = f"{row['comm'][:40]} (pid {row['pid']})"
        if row["driver"]:
            return f"not asked: {where} is stuck in the GPU driver"
        if row["driver"] is None and (row["gpu"] or _OF_DRIVER.match(row["comm"])):
            return f"not asked: {where} can't be ended now, and may be stuck in the GPU driver"
    return ""


def gather(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """At most ``limit_s`` seconds, and a second for what hangs."""
    place = Place(manifest["sysroot"], manifest["bin"], manifest["job"])
    start, limit_s = time.time(), manifest["limit_s"]
    by_lane: dict[str, dict[str, Any]] = {}
    for key, source in manifest["sources"].items():
        by_lane.setdefault(source["lane"], {})[key] = source
    lanes = [Lane(place, name, sources) for name, sources in by_lane.items()]
    _read_all(lanes, time.monotonic() + limit_s)
    found: dict[str, Any] = {}
    for lane in lanes:
        found.update(lane.answers(limit_s))
        lane.close()
    return {"observation": 1, **_stamps(place), "start": start, "end": time.time(), "found": found}


def _read_all(lanes: Sequence[Lane], end: float) -> None:
    while True:
        opened = {lane.pipe: lane for lane in lanes if not lane.over}
        ready, _, _ = select.select(list(opened), [], [], max(0.0, end - time.monotonic())) if opened else ([], [], [])
        if not ready:
            return
        for pipe in ready:
            opened[pipe].read()


def _is_elsewhere(environment: Mapping[str, str]) -> bool:
    """Of another slurmd on this machine (slurmd -N), whose processes this one sees too."""
    here, there = os.environ.get("SLURMD_NODENAME"), environment.get("SLURMD_NODENAME")
    return here is not None and there is not None and here != there


def _stamps(place: Place) -> dict[str, Any]:
    """``gpus``: those that Slurm lets this process see, None outside a job and where the job tells none."""
    host = of_file(place, "/proc/sys/kernel/hostname", 255).strip() or socket.gethostname()
    inside = JOB.search(of_file(place, "/proc/self/cgroup", 1 << 14))
    gpus = os.environ.get("SLURM_STEP_GPUS", os.environ.get("SLURM_JOB_GPUS"))
    return {
        "node": os.environ.get("SLURMD_NODENAME") or host.split(".")[0],
        "host": host,
        "uid": os.geteuid(),
        "python": "%d.%d.%d" % sys.version_info[:3],  # noqa: UP031 # 3.8
        "boot_id": of_file(place, "/proc/sys/kernel/random/boot_id", 64).strip(),
        "boot_time": boot_time(place),
        "kernel": of_file(place, "/proc/sys/kernel/osrelease", 255).strip(),
        "in_job": os.environ.get("SLURM_JOB_ID") or (inside.group(1) if inside else None),
        "gpus": None if gpus is None or place.root else gpus.split(","),
    }


def packed(manifest: Mapping[str, Any]) -> str:
    """The observation in one line. Where it is too large, its largest parts are left out: users write into some."""
    answer, most = gather(manifest), manifest["limit_bytes"]
    sizes = {key: len(json.dumps(one)) for key, one in answer["found"].items()}
    while sum(sizes.values()) > most:
        key = max(sizes, key=lambda key: sizes[key])
        answer["found"][key] = {"why": f"its {sizes.pop(key)} bytes make the answer larger than {most}"}
    text = json.dumps(answer).encode("ascii")
    return MARK + base64.b64encode(zlib.compress(text, 6)).decode("ascii") + "\n"


def main(manifest: Mapping[str, Any]) -> None:
    """Prints the observation, and ends at once: what is left behind is not waited for."""
    sys.stdout.write(packed(manifest))
    sys.stdout.flush()
    os._exit(0)
