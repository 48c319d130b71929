"""torchrun's agents: each a process of its own with a host name of its own, forked from one that has torch already.

All of an agent's own code runs, as ``python -m torch.distributed.run`` would run it; ranks are started by it as ever.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

__all__ = ["start"]

_PROGRAM = "torch.distributed.run"
_CLONE_NEWUTS = 0x04000000
_CONTEXT = multiprocessing.get_context("forkserver")
# All that the program imports but the program itself, which runs as __main__.
_CONTEXT.set_forkserver_preload([__name__, "torch.distributed.launcher.api"])
# Where numpy is not there torch says so when it is imported; ranks, which import it themselves, do so in their output.
warnings.filterwarnings("ignore", "Failed to initialize NumPy")


def start(
    node: str, console: Path, folder: Path, environment: Mapping[str, str], words: Sequence[str]
) -> ForkServerProcess:
    """In ``folder``, with all that it prints at the end of ``console``; ``words`` are torchrun's."""
    agent = _CONTEXT.Process(target=_run, args=(node, console, folder, dict(environment), list(words)))
    agent.start()
    return agent


def _run(node: str, console: Path, folder: Path, environment: dict[str, str], words: list[str]) -> None:
    os.setsid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(node)
    out = os.open(console, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _as_main(words)


def _as_main(words: list[str]) -> None:
    """What Python does for ``-m``, with the same traceback where it fails."""
    import torch.distributed as dist

    dist.set_debug_level_from_env()  # as an import does
    sys.argv[1:] = words
    try:
        runpy._run_module_as_main(_PROGRAM)  # type: ignore[attr-defined]
    except Exception as error:
        trace = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(trace and trace.tb_next), None)
        sys.exit(1)
