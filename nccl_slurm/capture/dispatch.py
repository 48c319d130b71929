"""The node's one worker process: works on what is queued, each run in a forked child of its own, a few at a time.

This process itself looks at the queue and at its children and at nothing that can hang. A child that hangs on a file
system or a driver can't be killed: it keeps its slot, a lock that it holds as long as it lives, so that such children
stop at a few a node, over all workers to come. The other slots go on.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable

from nccl_slurm.capture import queue
from nccl_slurm.capture.child import close_all_but
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.queue import Entry

__all__ = ["SLOTS", "attend"]

SLOTS = 4
#: A worker that finds nothing more waits as long for the next run: starting Python costs more than many runs do.
_LINGER_S = 5.0
#: After that it ends, for a new capture.conf and new code; the wrapper starts the next where runs are left.
_LIFE_S = 60.0
_LOOK_S = 0.1
#: From killing a child to giving it up.
_GRACE_S = 5.0

Work = Callable[[Entry], int]


@dataclass
class _Child:
    pid: int
    entry: Entry
    end: float  # on the monotonic clock


def attend(conf: Conf, work: Work) -> None:
    """Returns when nothing has been queued for a while. ``work`` runs in a child; its result is that one's status."""
    gc.freeze()  # what is loaded by now stays in shared pages
    born = busy = time.monotonic()
    children: list[_Child] = []
    while True:
        children = [child for child in children if not _over(conf, child)]
        waiting = queue.entries(conf.spool)
        now = time.monotonic()
        if now - born < _LIFE_S:
            children += _start(conf, work, _startable(waiting, children))
        if waiting or children:
            busy = now
        if not children and (now - busy >= _LINGER_S or now - born >= _LIFE_S):
            return
        time.sleep(_LOOK_S)


def _startable(waiting: list[Entry], children: list[_Child]) -> list[Entry]:
    """What is due, one entry a run, and none of runs that a child is at: it holds the run's lock."""
    at_work = {child.entry.run for child in children}
    first = {entry.run: entry for entry in reversed(waiting) if entry.run not in at_work}
    return [entry for entry in waiting if first.get(entry.run) is entry and entry.due(time.time())]


def _start(conf: Conf, work: Work, startable: list[Entry]) -> list[_Child]:
    started = []
    for number in range(SLOTS):
        slot = _free_slot(conf, number) if startable else None
        if slot is not None:
            entry = startable.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_work_in_child(work, entry, slot))
            os.close(slot)
            started.append(_Child(pid, entry, time.monotonic() + conf.worker_limit_s))
    return started


def _free_slot(conf: Conf, number: int) -> int | None:
    """A descriptor with the slot's lock, which a forked child shares."""
    path = os.path.join(queue.folder(conf.spool), f"lock.slot{number}")
    slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(slot)
        return None
    return slot


def _work_in_child(work: Work, entry: Entry, slot: int) -> int:
    try:
        os.setpgid(0, 0)
        close_all_but(slot)  # above all the lock that says who works on this node
        return work(entry)
    except BaseException:
        return 1


def _over(conf: Conf, child: _Child) -> bool:
    """Ended, or given up. Its entry goes in both cases: what it left undone is for the timer."""
    now = time.monotonic()
    done = os.waitpid(child.pid, os.WNOHANG)[0] != 0
    if not done and now >= child.end:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    if done or now >= child.end + _GRACE_S:
        queue.done(conf.spool, child.entry)
        return True
    return False
