"""What every reproduction needs besides its scene: starting the ranks, bringing them together, judging what they print.

From the line of dashes on it is copied into each script, so it knows nothing of nccl-slurm: Python 3.8 and torch alone.
"""

from __future__ import annotations

# ---- machinery: starts the ranks and checks what they print
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from datetime import timedelta
from typing import IO, Any, Callable, Mapping, Sequence

LAUNCHED = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
if LAUNCHED:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # torch reads it when it is imported
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

#: Importing torch on a loaded machine takes long; the time-out of the scene begins when all ranks are there.
PATIENCE_S = 300.0

Expected = Mapping[int, Sequence[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def meet(rank: int, size: int) -> Any:
    """The store of all ranks, once each of them has come."""
    store = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))[0]
    store.set(f"here/{rank}", "1")
    store.wait([f"here/{other}" for other in range(size)], timedelta(seconds=PATIENCE_S))
    return store


def join(rank: int, size: int, backend: str, timeout_s: float, store: Any = None) -> Any:
    """Makes the process group; the device for its tensors. ``auto``: NCCL where each rank has a GPU, else gloo."""
    local = int(os.environ.get("LOCAL_RANK", rank))
    if backend == "auto":
        backend = "nccl" if torch.cuda.device_count() >= size and dist.is_nccl_available() else "gloo"
    device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = meet(rank, size) if store is None else store
    public: Any = dist  # type checkers don't take its stores for names of its own
    named = public.PrefixStore("default_pg", store)  # as init_process_group does with a store that it makes itself
    dist.init_process_group(backend, store=named, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    return device


def stay_away(timeout_s: float) -> None:
    """Longer than the others wait; the starting process ends it before that."""
    time.sleep(2 * timeout_s + 10)


def play(scene: Callable[[int, int], None], expected: Expected) -> int:
    """One rank: 0, unless it did not see what it should."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    seen = ""
    try:
        scene(rank, size)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:
        seen = traceback.format_exc()
        print(seen, file=sys.stderr)
    missed = [text for text in expected.get(rank, ()) if not line_with(text, seen)]
    if rank in expected:  # without the pattern: whoever reads this output looks for it
        print(f"rank {rank}: what was expected was {'not ' if missed else ''}seen")
    return 1 if missed else 0


def start(expected: Expected, size: int, idle: set[int], odd: int, ends: int | None, timeout_s: float) -> int:
    """All ranks on this machine: 0 where each of ``expected`` was printed, and ``odd`` ended with status ``ends``; 2
    where torch is not there."""
    if importlib.util.find_spec("torch") is None:
        print(f"not run: {sys.executable} has no torch; install it there (pip install torch), or give another Python")
        return 2
    print(f"starting {size} ranks; this takes up to {timeout_s:g} s and torch's start", flush=True)
    with ExitStack() as files:
        outputs = [files.enter_context(output_file()) for _ in range(size)]
        statuses = run(outputs, idle, timeout_s)
        return judge([printed(output) for output in outputs], statuses, expected, odd, ends)


def output_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def run(outputs: Sequence[IO[str]], idle: set[int], timeout_s: float) -> list[int]:
    """Exit statuses of all ranks; those that only stay away are ended when the others are done."""
    workers = workers_of(outputs)
    try:
        deadline = time.monotonic() + PATIENCE_S + 5 * timeout_s
        for rank in sorted(set(range(len(workers))) - idle):
            workers[rank].wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("the ranks did not end in time")
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    return [worker.returncode for worker in workers]


def workers_of(outputs: Sequence[IO[str]]) -> list[subprocess.Popen[bytes]]:
    size, port, workers = len(outputs), free_port(), []
    common = {"OMP_NUM_THREADS": "1", **os.environ, "WORLD_SIZE": str(size)}
    common.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    for rank, output in enumerate(outputs):
        own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        workers.append(subprocess.Popen([sys.executable, __file__], env=own, stdout=output, stderr=output))
    return workers


def printed(output: IO[str]) -> str:
    output.seek(0)
    return output.read()


def judge(texts: Sequence[str], statuses: Sequence[int], expected: Expected, odd: int, ends: int | None) -> int:
    for rank, text in enumerate(texts):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
    wanted = [(rank, text) for rank in sorted(expected) for text in expected[rank]]
    seen = {(rank, text): line_with(text, texts[rank]) for rank, text in wanted}
    missed = [f"rank {rank} printed nothing that matches {text!r}" for (rank, text), line in seen.items() if not line]
    if ends is not None and statuses[odd] != ends:
        missed.append(f"rank {odd} ended with status {statuses[odd]}, not {ends}")
    if missed:
        print("not reproduced: " + "; ".join(missed))
        return 1
    lines = dict.fromkeys(f"rank {rank}: {line}" for (rank, _), line in seen.items())
    print("reproduced: " + "; ".join([*lines, *([] if ends is None else [f"rank {odd}: exit status {ends}"])]))
    return 0


def line_with(pattern: str, text: str) -> str:
    """The line that matches, its end left out where it is long; empty where none does."""
    return next((line.strip()[:400] for line in text.splitlines() if re.search(pattern, line)), "")
