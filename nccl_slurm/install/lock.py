"""One installer at a time for a configuration: two at once would move each other's half-made files into place."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import Iterator

from nccl_slurm.errors import InstallError
from nccl_slurm.install.layout import Layout

__all__ = ["alone"]


@contextmanager
def alone(layout: Layout, folder: str = "/run") -> Iterator[None]:
    """Holds the lock until the end. Raises InstallError where another one has it, OSError where ``folder`` takes no
    file. The file goes with its holder: nothing is left behind."""
    path = os.path.join(folder, f"nccl-slurm-install{layout.on_disk(layout.conf).replace('/', '-')[-200:]}.lock")
    lock = _locked(path)
    if lock is None:
        raise InstallError(f"another install.sh is at work on {layout.conf}; run this again when it is through")
    try:
        yield
    finally:
        os.unlink(path)
        os.close(lock)


def _locked(path: str) -> int | None:
    """None where it is held. Whoever held it may have removed the file after we had opened it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(lock)):
                return lock
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(lock)
            return None
        os.close(lock)
