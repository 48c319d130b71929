"""What every rank of train.py has: its options, its log, batches, a flight recorder, and the state of its loop."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="", help="what the ranks of --on do at step --at; see parts.py")
    parser.add_argument("--all", dest="habit", default="", help="what all ranks do in each step; see habits.py")
    parser.add_argument("--on", type=int, nargs="*", default=[])
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--wait", type=float, default=8.0, help="seconds that a collective may take")
    parser.add_argument("--start-wait", type=float, default=60.0, help="seconds that init_process_group may take")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--dumps", help="folder for flight recorder dumps")
    parser.add_argument("--dump-after", type=float, default=4.0, help="seconds without a step before a dump")
    parser.add_argument("--say", choices=("all", "first", "nothing"), default="all", help="ranks that log their steps")
    parser.add_argument("--no-world", action="store_true", help="the number of ranks is not logged")
    parser.add_argument("--deaf", type=int, nargs="*", default=[], help="ranks that ignore SIGTERM")
    parser.add_argument("--only-attempt", type=int, help="restart in which things go wrong; default: in all")
    parser.add_argument("--in-turn", action="store_true", help="of --on one rank an attempt")
    return parser.parse_args()


ARGS = arguments()
RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
TURN = ARGS.on[ATTEMPT : ATTEMPT + 1] if ARGS.in_turn else ARGS.on
CONCERNED = RANK in TURN and ARGS.only_attempt in (None, ATTEMPT)
log = logging.getLogger("train")
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

if RANK in ARGS.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Recorder(threading.Thread):
    """Dumps the flight recorder when no step ends any more, as NCCL's watchdog does; gloo has none."""

    def __init__(self, folder: str, limit: float) -> None:
        super().__init__(daemon=True)
        self.path, self.limit, self.last = Path(folder) / f"nccl_trace_rank_{RANK}", limit, time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self.last < self.limit:
            time.sleep(0.1)
        # Without stack traces: to resolve them takes seconds that a rank about to die does not have.
        self.path.write_bytes(vars(torch._C._distributed_c10d)["_dump_fr_trace"](includeStackTraces=False))


class Batches:
    """From a queue that a reader fills; ``stuck``: it fills no more."""

    def __init__(self) -> None:
        self.come, self.stuck = threading.Event(), False

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if self.stuck:
                log.info("rank %d: waiting for the next batch", RANK)
                self.come.wait()
            yield torch.ones(64)


class Base:
    """``reduce`` is the step's own collective, ``pair`` and ``other`` are groups that a habit makes."""

    def __init__(self) -> None:
        self.world = int(os.environ["WORLD_SIZE"])
        self.batches = Batches()
        self.step = 0
        self.skip = False
        self.reduce: Callable[[torch.Tensor], None] = self.all_reduce
        self.pair: dist.ProcessGroup | None = None
        self.other: dist.ProcessGroup | None = None
        self.recorder = Recorder(ARGS.dumps, ARGS.dump_after) if ARGS.dumps else None

    def concerned(self) -> bool:
        return CONCERNED and self.step == ARGS.at

    def all_reduce(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)

    def finish(self) -> None:
        if self.recorder:
            self.recorder.last = float("inf")
        dist.destroy_process_group()
