"""The node's one worker process: works on what is queued, each run in a forked child of its own, a few at a time.

This process itself looks at the queue and at its children and at nothing that can hang. A child ends itself at its
limit. One that hangs on a file system or a driver can't be killed: it keeps its slot, a lock that it holds as long as
it lives, so that such children stop at a few a node, over all workers to come. The other slots go on.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable

from nccl_slurm.capture import queue, slots, spool
from nccl_slurm.capture.child import close_all_but
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.queue import Entry
from nccl_slurm.errors import InputError

__all__ = ["attend"]

#: A worker that finds nothing more waits as long for the next run: starting Python costs more than many runs do.
_LINGER_S = 5.0
#: After that the next run gets the next worker, which the wrapper starts with a new capture.conf and new code.
_LIFE_S = 60.0
_LOOK_S = 0.1
#: From a child's end to giving it up.
_GRACE_S = 5.0

Work = Callable[[Entry], int]


@dataclass
class _Child:
    pid: int
    entry: Entry
    end: float  # on the monotonic clock


def attend(conf: Conf, work: Work) -> None:
    """Returns when nothing has been queued for a while, or to hand over to the next worker. ``work`` runs in a child;
    its result is that one's status."""
    gc.freeze()  # what is loaded by now stays in shared pages
    born = busy = time.monotonic()
    children: list[_Child] = []
    while True:
        children = [child for child in children if not _over(conf, child)]
        waiting = _not_at_work(queue.entries(conf.spool), children)
        now = time.monotonic()
        old = now - born >= _LIFE_S
        if waiting and old:
            _let_go(conf, children)
            return
        if waiting:
            children += _start(conf, work, _due(waiting))
        if waiting or children or _others_at_work(conf):
            busy = now
        elif old or now - busy >= _LINGER_S:
            return
        time.sleep(_LOOK_S)


def _let_go(conf: Conf, children: list[_Child]) -> None:
    """They go on without this process, and hold their slots. What one of them leaves undone is for the timer."""
    for child in children:
        queue.done(conf.spool, child.entry)


def _others_at_work(conf: Conf) -> bool:
    """Children of earlier workers, but those that can't be killed: where systemd runs, all end with the last worker."""
    now, limit = time.time(), conf.worker_limit_s + _GRACE_S
    return any(abs(now - one.since) < limit for one in slots.held(conf.spool))


def _not_at_work(queued: list[Entry], children: list[_Child]) -> list[Entry]:
    """One entry a run, and none of runs that a child is at: it holds the run's lock."""
    at_work = {child.entry.run for child in children}
    first = {entry.run: entry for entry in reversed(queued) if entry.run not in at_work}
    return [entry for entry in queued if first.get(entry.run) is entry]


def _due(waiting: list[Entry]) -> list[Entry]:
    now = time.time()
    return [entry for entry in waiting if entry.due(now)]


def _start(conf: Conf, work: Work, due: list[Entry]) -> list[_Child]:
    started: list[_Child] = []
    refused: set[str] = set()
    for entry in due:
        user = _user(conf.spool, entry.run)
        slot = None if user in refused else slots.take(conf.spool, user)
        if slot is None:
            refused.add(user)
        else:
            started.append(_fork(conf, work, entry, slot))
    return started


@lru_cache(maxsize=1000)
def _user(folder: str, run: str) -> str:
    try:
        return spool.open_run(folder, os.path.join(folder, run)).uid
    except InputError:
        return ""


def _fork(conf: Conf, work: Work, entry: Entry, slot: int) -> _Child:
    limit_s = max(1.0, conf.worker_limit_s)
    pid = os.fork()
    if pid == 0:
        os._exit(_work_in_child(work, entry, slot, limit_s))
    os.close(slot)
    return _Child(pid, entry, time.monotonic() + limit_s + _GRACE_S)


def _work_in_child(work: Work, entry: Entry, slot: int, limit_s: float) -> int:
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        close_all_but(slot)  # above all the lock that says who works on this node
        return work(entry)
    except BaseException:
        return 1


def _over(conf: Conf, child: _Child) -> bool:
    """Ended, or given up. Its entry goes in both cases: what it left undone is for the timer."""
    over = os.waitpid(child.pid, os.WNOHANG)[0] != 0 or time.monotonic() >= child.end
    if over:
        queue.done(conf.spool, child.entry)
    return over
