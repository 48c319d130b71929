"""File systems that fail: small, read-only, frozen, or one whose server never answers. Seen by this test alone.

A dead NFS server is made by FUSE: the kernel hands requests to a server, which answers the first (INIT) and takes the
others without a word. From then on callers sleep in uninterruptible state (D), which SIGKILL does not end, as with a
hard NFS mount. By hand: ``python -m tests.cluster.mounts FOLDER`` mounts one and serves it until its standard input
ends.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["can_freeze", "can_hang", "frozen", "hung", "mounted", "private_mounts"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _MS_SHARED, _MNT_DETACH = 0x20000, 0x4000, 1 << 18, 1 << 20, 2
#: linux/fuse.h: struct fuse_in_header; struct fuse_out_header with struct fuse_init_out of protocol 7.31.
_IN, _OUT, _INIT_OUT, _INIT = struct.Struct("=IIQQIIIHH"), struct.Struct("=IiQ"), struct.Struct("=IIIIHHIIHHI28x"), 26


def _call(name: str, *args: object) -> None:
    if getattr(_LIBC, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, folder: str, kind: str, flags: int, data: str) -> None:
    _call("mount", source.encode(), folder.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())


@contextmanager
def private_mounts() -> Iterator[None]:
    """This thread and what it starts see their own mounts: a `df` of somebody else must not hang on ours. They are
    shared with name spaces that are made out of this one later (a cluster of another release has some)."""
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    here = os.getcwd()
    try:
        _call("unshare", _CLONE_NEWNS)
        for kind in (_MS_PRIVATE, _MS_SHARED):
            _mount("none", "/", "none", _MS_REC | kind, "")
        yield
    finally:
        _call("setns", before, _CLONE_NEWNS)
        os.close(before)
        os.chdir(here)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """``mount OPTIONS FOLDER``, taken away at the end whoever still uses it."""
    subprocess.run(["mount", *options, str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        detach(folder)


def detach(folder: Path) -> None:
    _call("umount2", str(folder).encode(), _MNT_DETACH)


@contextmanager
def hung(folder: Path) -> Iterator[None]:
    """Whoever touches ``folder`` sleeps until the end of this, and then gets an error."""
    command = [sys.executable, "-m", "tests.cluster.mounts", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        try:
            if server.stdout.readline() != "mounted\n":
                raise OSError(f"no FUSE mount at {folder}")
            yield
        finally:
            server.kill()  # end of input won't do: a forked process that sleeps in there holds the pipe as well
            server.wait(20)
            detach(folder)


def can_hang() -> bool:
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextmanager
def frozen(folder: Path, image: Path) -> Iterator[None]:
    """An ext4 with a spool's rights that can be read; whoever writes sleeps (D) until the end."""
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    with mounted(folder, "-o", "loop", str(image)):
        folder.chmod(0o711)
        subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", str(folder)], check=True)


def can_freeze() -> bool:
    return os.path.exists("/dev/loop-control") and os.path.exists("/sbin/mkfs.ext4") and os.access("/sbin/fsfreeze", 1)


def _serve(folder: str) -> None:
    """The end of this process closes the descriptor: the kernel then wakes all who wait."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    _mount("never-answers", folder, "fuse.hung", 0, options)
    threading.Thread(target=_swallow, args=(device,), daemon=True).start()
    print("mounted", flush=True)
    sys.stdin.read()


def _swallow(device: int) -> None:
    while True:
        length, opcode, unique, *_ = _IN.unpack_from(request := os.read(device, 1 << 17))
        if opcode == _INIT and length <= len(request):
            body = _INIT_OUT.pack(7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0)
            os.write(device, _OUT.pack(_OUT.size + len(body), 0, unique) + body)


if __name__ == "__main__":
    _serve(sys.argv[1])
