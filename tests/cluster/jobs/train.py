"""A small data-parallel training loop on gloo that can fail in one way on one rank. Started by torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from datetime import timedelta

MODES = ("good", "raise", "sigkill", "sleep", "mismatch")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="good")
    parser.add_argument("--rank", type=int, default=1, help="global rank that fails")
    parser.add_argument("--at", type=int, default=3, help="step at which it fails")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of a step's own work")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds of the process group")
    parser.add_argument(
        "--dump-after", type=float, help="dump the flight recorder after so many seconds without a step"
    )
    return parser.parse_args()


ARGS = arguments()
if ARGS.mode == "mismatch":
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # c10d compares fingerprints of collectives; read at import

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402


class Recorder(threading.Thread):
    """Dumps the flight recorder when no step ends any more, as NCCL's watchdog does; gloo has none."""

    def __init__(self, rank: int, limit: float) -> None:
        super().__init__(daemon=True)
        self.path = os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "nccl_trace_rank_") + str(rank)
        self.limit, self.last = limit, time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self.last < self.limit:
            time.sleep(0.2)
        # Without stack traces: to resolve them takes seconds that a rank about to die does not have.
        dump = vars(torch._C._distributed_c10d)["_dump_fr_trace"](includeStackTraces=False)
        with open(self.path, "wb") as file:
            file.write(dump)


def fail(mode: str, step: int) -> None:
    """What goes wrong on the one rank, before it enters the step's collective."""
    if mode == "raise":
        raise ValueError(f"loss is nan at step {step}")
    if mode == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "sleep":
        time.sleep(3600)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=ARGS.timeout))
    rank = dist.get_rank()
    recorder = Recorder(rank, ARGS.dump_after) if ARGS.dump_after else None
    if recorder:
        recorder.start()
    for step in range(ARGS.steps):
        time.sleep(ARGS.pause)
        bad = rank == ARGS.rank and step == ARGS.at
        if bad:
            fail(ARGS.mode, step)
        gradient = torch.ones(32 if bad and ARGS.mode == "mismatch" else 64)
        dist.all_reduce(gradient)
        if recorder:
            recorder.last = time.monotonic()
        # One write a line: several ranks share the job's output file.
        print(f"[rank {rank}] step {step} of {ARGS.steps}\n", end="", flush=True)
    if recorder:
        recorder.last = float("inf")
    dist.destroy_process_group()


if __name__ == "__main__":
    record(main)()
