"""How long a person waits for a report: from the shell, imports included.

    python -m tests.bench.report [--turns N]

``nccl-slurm report --logs`` of 8 ranks and 1 MB: NCCL's INFO, where nearly every line is one that a row knows, which is
the dearest kind, and the last words of the ranks. ``nccl-slurm report JOBID`` of that report in a store of SQLite. In
turns with a Python that does nothing; medians of wall time, and of CPU time, which a busy machine changes less. Prints
a table, and last a line with the figures; exit status 0 where every bar holds. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from tests.bench.figures import Figure, figure_of, show

__all__ = ["main"]

TURNS = 9
#: Bar: seconds of wall time.
WALL_S = 0.6
JOB = 42

Command = Sequence[str]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args(argv).turns
    if turns < 1:
        parser.error("nothing to measure")
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-report-") as scratch:
        return show(_figures(_commands(Path(scratch)), turns))


def _figures(commands: dict[str, Command], turns: int) -> list[Figure]:
    wall: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        for name, command in commands.items():
            began, used = time.monotonic(), _children_cpu_s()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first one writes the caches of bytecode
                wall[name].append(time.monotonic() - began)
                cpu[name].append(_children_cpu_s() - used)
    load = os.getloadavg()[0]
    figures = []
    for name in commands:
        seconds, used = statistics.median(wall[name]), statistics.median(cpu[name])
        bar = figure_of(name, seconds, "s", WALL_S) if name != NOTHING else Figure(name, f"{seconds:.3g} s")
        figures += [bar, Figure(f"{name}, CPU", f"{used:.3g} s")]
    return [replace(figure, load=load) for figure in figures]


NOTHING = "python -c pass"


def _commands(scratch: Path) -> dict[str, Command]:
    logs, program = scratch / "logs", [str(Path(sys.executable).with_name("nccl-slurm")), "report"]
    write_logs(logs)
    of_logs = [*program, "--logs", str(logs)]
    report = json.loads(subprocess.run([*of_logs, "--json"], check=True, capture_output=True).stdout)
    config = scratch / "nccl-slurm.toml"
    config.write_text(f'[paths]\nstate = "{scratch}"\nshared = ""\n[store]\nurl = "sqlite:///{scratch}/store.db"\n')
    with Store.open(f"sqlite:///{scratch}/store.db") as store:
        store.upsert_run(RunRow("lab", JOB, 1, str(JOB), user="alice", uid=7001, nodes=("n1", "n2"), status="final"))
        store.save_report("lab", JOB, 1, report, 1.0)
    return {
        NOTHING: [sys.executable, "-c", "pass"],
        "report --logs, 8 ranks, 1 MB": of_logs,
        "report JOBID": [*program, str(JOB), "--config", str(config)],
    }


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_logs(folder: Path, ranks: int = 8, size: int = 125_000) -> None:
    """One NCCL log a rank. Rank 5 raises, the others wait for it and time out."""
    folder.mkdir()
    for rank in range(ranks):
        head = f"gpu{rank // 4}:{4000 + rank}:{4100 + rank} [{rank % 4}] NCCL INFO"
        comm = f"comm 0x55d0c0ffee00 rank {rank} nranks {ranks} cudaDev {rank % 4} nvmlDev {rank % 4}"
        lines = [f"{head} ncclCommInitRank {comm} busId {rank + 1}a000 commId 0x1a2b3c4d5e6f7a8b - Init COMPLETE"]
        line = f"{head} Channel {{:02d}}/0 : {rank}[{rank % 4}] -> {(rank + 1) % ranks}[0] via P2P/CUMEM"
        lines += [line.format(number % 64) for number in range(size // len(line))]
        (folder / f"nccl.gpu{rank // 4}.{4000 + rank}.log").write_text("\n".join([*lines, *_last_words(rank)]) + "\n")


def _last_words(rank: int) -> list[str]:
    if rank == 5:
        return [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "train.py", line 88, in step',
            f"[rank{rank}]: ValueError: loss is nan at step 412",
        ]
    work = "WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000)"
    return [
        f"[rank{rank}]:[E1129 12:39:15.334 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: {work} ran for 600029 milliseconds before timing out."
    ]


if __name__ == "__main__":
    sys.exit(main())
