"""zstd by the program of that name, where this Python has no reader of it (the standard library has one from 3.14 on).

At fixed places, as `search.grep`: what runs with a job user's rights takes nothing from PATH. The program gets the
file's descriptor, its output comes through a pipe; memory does not depend on the file.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import BinaryIO, Iterator

__all__ = ["program", "unpacked"]

_PATHS = ("/usr/bin/zstd", "/bin/zstd")
_CHUNK = 1 << 20
#: Largest window that is accepted, as of the program's own default (``--long`` makes larger ones), and all it may have.
_WINDOW_MB = 128
_MEMORY = 448 << 20


def program() -> str | None:
    return next((path for path in _PATHS if os.access(path, os.X_OK)), None)


def unpacked(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The whole of ``file``, by the program at ``path``, in chunks of at most 1 MiB.

    Raises ValueError: it can't be started, or the file is broken or cut off (after what stands before that). OSError:
    ``file`` has no descriptor.
    """
    import subprocess  # other logs need none

    descriptor = file.fileno()
    os.lseek(descriptor, 0, os.SEEK_SET)
    command = [path, "-dcq", f"--memory={_WINDOW_MB}MB"]
    try:
        child = subprocess.Popen(
            command, stdin=descriptor, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"LC_ALL": "C"}, bufsize=0
        )
    except OSError as error:
        raise ValueError(f"can't be unpacked: {path}: {error.strerror}") from None
    with suppress(OSError, ValueError):  # it has ended, or a lower limit is set
        resource.prlimit(child.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    assert child.stdout is not None
    try:
        while True:
            chunk = os.read(child.stdout.fileno(), _CHUNK)
            if not chunk:
                break
            yield chunk
    except GeneratorExit:
        child.kill()
        raise
    finally:
        child.stdout.close()
        status = child.wait()
    if status:
        raise ValueError(f"can't be unpacked to its end: zstd ended with status {status}")
