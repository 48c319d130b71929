"""How fast large logs are searched: our reader against the bare programs with the same literals, in turns, in one run.

    python -m tests.bench.scan [--scratch DIR] [--mib N] [--node-mb N] [--turns N] [--only rg,grep]

Writes 64 files of a job of 64 ranks, 1 GiB in all (NCCL's INFO at the start, the trainer's steps, a watchdog's last
words but for one rank), and for a node 8 files of 200 MB. CPU seconds of this process and of those that it started,
medians of the turns, files in the page cache; MB are 10^6 bytes. ``cat`` of the same files is beside them. The bars are
for those sizes (default); smaller ones only show that the bench runs. Prints a table, and last a line with the figures;
exit status 0 where every bar holds. ripgrep (the extra ``fast``) is looked for beside this Python and in PATH; without
it its bar does not hold. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import Rows, load_rows
from nccl_slurm.parse.search import GREP, Program, fastest, grep
from tests.bench.figures import Figure, figure_of, show

__all__ = ["main"]

RANKS, MIB = 64, 1024
NODE_RANKS, NODE_MB = 8, 200
DENSE_MB = 16
TURNS = 5
#: Bars: share of the bare program's CPU throughput; times ripgrep with all anchors; CPU seconds of a node.
SHARE, TIMES_ALL, NODE_S = 0.7, 2.0, 10.0
STUCK = 13
NOW = 1_797_000_000.0

Command = Sequence[str]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, help="where the files are written (default: a temporary folder)")
    parser.add_argument("--mib", type=int, default=MIB, help=f"of the {RANKS} files together (default {MIB})")
    parser.add_argument(
        "--node-mb", type=int, default=NODE_MB, help=f"of each of {NODE_RANKS} files (default {NODE_MB})"
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {','.join(PARTS)}")
    chosen = parser.parse_args(argv)
    wanted = [name for name in PARTS if name in chosen.only.split(",")]
    if not wanted or chosen.turns < 1 or chosen.mib < 1 or chosen.node_mb < 1:
        parser.error("nothing to measure")
    scratch = Path(tempfile.mkdtemp(prefix="nccl-slurm-scan-", dir=chosen.scratch))
    try:
        bench = Bench(scratch, load_rows(), chosen.mib, chosen.node_mb, chosen.turns)
        return show([figure for name in wanted for figure in _measured(name, bench)])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measured(name: str, bench: Bench) -> list[Figure]:
    print(f"{name} …", file=sys.stderr)
    figures = PARTS[name](bench)
    load = os.getloadavg()[0]
    return [replace(figure, load=load) for figure in figures]


@dataclass(frozen=True)
class Bench:
    scratch: Path
    rows: Rows
    mib: int
    node_mb: int
    turns: int

    def job(self) -> Corpus:
        return Corpus.of(self.scratch / "job", RANKS, (self.mib << 20) // RANKS, steps)

    def literals(self, literals: Iterable[bytes], name: str) -> str:
        path = self.scratch / name
        path.write_bytes(b"".join(literal + b"\n" for literal in literals))
        return str(path)

    def in_turns(self, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
        """CPU seconds, medians; one run of each first that does not count."""
        for run in runs.values():
            run()
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.turns):
            for name, run in runs.items():
                before = _cpu_s()
                run()
                found[name].append(_cpu_s() - before)
        return {name: statistics.median(values) for name, values in found.items()}


@dataclass(frozen=True)
class Corpus:
    folder: Path
    files: tuple[str, ...]
    bytes: int

    @classmethod
    def of(cls, folder: Path, ranks: int, size: int, lines: Callable[[int], Iterator[str]]) -> Corpus:
        """Written where it is not there yet."""
        folder.mkdir(exist_ok=True)
        paths = [folder / f"nccl.n{rank // 8}.{4000 + rank}.log" for rank in range(ranks)]
        for rank, path in enumerate(paths):
            if not path.exists():
                _write(path, rank, size, lines)
        return cls(folder, tuple(map(str, paths)), sum(path.stat().st_size for path in paths))

    def read(self, rows: Rows, program: Program | None) -> None:
        sources, _ = walk(str(self.folder))
        parsed = read_sources(sources, rows, now=NOW, program=program)
        assert parsed.facts, "nothing found: this measures nothing"


def _write(path: Path, rank: int, size: int, lines: Callable[[int], Iterator[str]]) -> None:
    end = "".join(f"{line}\n" for line in last_words(rank))
    left = size - len(end)
    with path.open("w") as file:
        for line in (one for part in (start(rank), lines(rank)) for one in part):
            left -= file.write(f"{line}\n")
            if left <= 0:
                break
        file.write(end)


def _cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _run(command: Command) -> None:
    """Its output is read: both programs stop at the first match where it goes to /dev/null."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"LC_ALL": "C"}) as child:
        assert child.stdout is not None
        while child.stdout.read(1 << 20):
            pass
    if child.returncode > 1:
        raise SystemExit(f"bench: {command[0]} ended with status {child.returncode}")


def _cat(corpus: Corpus) -> Command:
    return [shutil.which("cat") or "cat", *corpus.files]


# ---- the parts


def rg(bench: Bench) -> list[Figure]:
    program = fastest()
    if program is None or program.arguments == GREP:
        return [Figure("ripgrep", "not installed (ripgrep<15)", f"≥ {SHARE:g} ×", False)]
    corpus = bench.job()
    few = bench.literals(bench.rows.literals, "literals")
    every = bench.literals(bench.rows.anchors, "anchors")
    bare = [program.path, "--no-config", "-j1", "-a", "-F", "-f"]
    seconds = bench.in_turns(
        {
            "ours": lambda: corpus.read(bench.rows, program),
            "bare": lambda: _run([*bare, few, *corpus.files]),
            "all": lambda: _run([*bare, every, *corpus.files]),
            "cat": lambda: _run(_cat(corpus)),
        }
    )
    share, times = seconds["bare"] / seconds["ours"], seconds["all"] / seconds["ours"]
    return [
        *_speeds(
            corpus,
            seconds,
            {"ours": "with ripgrep", "bare": "bare ripgrep", "all": "bare ripgrep, all anchors", "cat": "cat"},
        ),
        figure_of("with ripgrep, share of bare", share, "×", SHARE, at_least=True),
        figure_of("with ripgrep, of ripgrep with all anchors", times, "×", TIMES_ALL, at_least=True),
    ]


def gnu_grep(bench: Bench) -> list[Figure]:
    program = grep()
    if program is None:
        return [Figure("grep", "not installed", f"≥ {SHARE:g} ×", False)]
    corpus = bench.job()
    few = bench.literals(bench.rows.literals, "literals")
    seconds = bench.in_turns(
        {
            "ours": lambda: corpus.read(bench.rows, program),
            "bare": lambda: _run([program.path, "-a", "-F", "-f", few, *corpus.files]),
            "cat": lambda: _run(_cat(corpus)),
        }
    )
    share = seconds["bare"] / seconds["ours"]
    return [
        *_speeds(corpus, seconds, {"ours": "with grep", "bare": "bare grep", "cat": "cat"}),
        figure_of("with grep, share of bare", share, "×", SHARE, at_least=True),
    ]


def blocks(bench: Bench) -> list[Figure]:
    """Neither program: what a slim container has."""
    corpus = bench.job()
    none = Program("/nonexistent/search", ())
    seconds = bench.in_turns({"ours": lambda: corpus.read(bench.rows, none)})
    return _speeds(corpus, seconds, {"ours": "with Python alone"})


def node(bench: Bench) -> list[Figure]:
    """As the epilog's reader: grep."""
    corpus = Corpus.of(bench.scratch / "node", NODE_RANKS, bench.node_mb * 1_000_000, steps)
    seconds = bench.in_turns(
        {"ours": lambda: corpus.read(bench.rows, None), "cat": lambda: _run(_cat(corpus))},
    )
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return [
        *_speeds(corpus, seconds, {"cat": f"cat, {NODE_RANKS} × {bench.node_mb} MB"}),
        figure_of(f"node, {NODE_RANKS} × {bench.node_mb} MB", seconds["ours"], "s of CPU", NODE_S),
        Figure("largest process of this bench", f"{peak / 1000:.0f} MB"),
    ]


def dense(bench: Bench) -> list[Figure]:
    """Every line is of interest, and like many others."""
    corpus = Corpus.of(bench.scratch / "dense", 1, DENSE_MB * 1_000_000, channels)
    seconds = bench.in_turns({"ours": lambda: corpus.read(bench.rows, None)})
    return _speeds(corpus, seconds, {"ours": "channel lines alone, with grep"})


def _speeds(corpus: Corpus, seconds: dict[str, float], names: dict[str, str]) -> list[Figure]:
    return [
        Figure(name, f"{corpus.bytes / 1e6 / seconds[key]:.0f} MB/s ({seconds[key]:.2f} s of CPU)")
        for key, name in names.items()
    ]


PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "rg": rg,
    "grep": gnu_grep,
    "blocks": blocks,
    "node": node,
    "dense": dense,
}


# ---- what ranks write


def start(rank: int) -> Iterator[str]:
    nccl = _nccl(rank)
    yield f"{nccl} Bootstrap: Using eth0:10.1.2.{rank // 8}<0>"
    if rank == 0:
        yield "NCCL version 2.21.5+cuda12.4"
    for name, value in (("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "mlx5")):
        yield f"{nccl} {name} set by environment to {value}"
    yield f"{nccl} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.1.2.3<0>"
    yield f"{nccl} Using non-device net plugin version 0"
    yield f"{nccl} Using network IB"
    for number in range(4):
        yield from _communicator(rank, number)


def _communicator(rank: int, number: int) -> Iterator[str]:
    nccl, local = _nccl(rank), rank % 8
    init = (
        f"{nccl} ncclCommInitRank comm 0x55d0{number:02x}{rank:04x} rank {rank} nranks {RANKS} cudaDev {local} "
        f"nvmlDev {local} busId {local:x}b000 commId 0xa1b2c{number} - Init"
    )
    yield f"{init} START"
    yield f"{nccl} Setting affinity for GPU {local} to ffff,ffffffff,00000000,0000ffff,ffffffff"
    yield f"{nccl} NVLS multicast support is not available on dev {local}"
    yield f"{nccl} Trees [0] " + " ".join(f"{step}/-1/-1->{rank}->{step + 1}" for step in range(8))
    yield f"{nccl} P2P Chunksize set to 131072"
    for channel in range(24):
        here = f"{rank}[{local}]"
        last, following = (f"{peer % RANKS}[{peer % 8}]" for peer in (rank - 1, rank + 1))
        yield f"{nccl} Channel {channel:02d}/0 : {last} -> {here} [receive] via NET/IB/{channel % 8}/GDRDMA"
        yield f"{nccl} Channel {channel:02d}/0 : {here} -> {following} via P2P/CUMEM"
    yield f"{nccl} Connected all rings"
    yield f"{nccl} Connected all trees"
    yield f"{nccl} threadThresholds 8/8/64 | 512/8/64 | 512 | 512"
    yield f"{init} COMPLETE"


def steps(rank: int) -> Iterator[str]:
    chance = random.Random(rank)
    for step in count(1):
        seconds = int(step * 4.3)
        stamp = f"2026-11-29 {10 + seconds // 3600 % 14:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        yield (
            f"[{stamp}] iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | elapsed time per "
            f"iteration (ms): {4300 + chance.random() * 50:.1f} | learning rate: {chance.random():.6E} | "
            f"global batch size:   512 | lm loss: {chance.random() * 3:.6E} | loss scale: 1.0 | "
            f"grad norm: {chance.random():.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if step % 3 == 0:
            yield f"{stamp} INFO trainer.py:412 [rank {rank}] step={step} loss={chance.random():.4f} mem=71.2GB"
        if step % 50 == 0:
            yield f"Training:  {step % 100}%|{'#' * (step % 40)}| {step}/500000 [1:02:03<10:20:30, 4.31s/it]"
        if step % 200 == 0:
            yield f"{_nccl(rank)} [Proxy Progress] Device {rank % 8} CPU core 3"
        if step % 1000 == 0:
            yield f"{stamp} saving checkpoint at iteration {step} to /scratch/run-7"


def channels(rank: int) -> Iterator[str]:
    for number in count():
        yield f"{_nccl(rank)} Channel {number % 24:02d}/0 : {rank}[{rank % 8}] -> {rank + 1}[{rank + 1}] via P2P/CUMEM"


def last_words(rank: int) -> Iterator[str]:
    if rank == STUCK:
        return
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    yield (
        f"[rank{rank}]:[E1129 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
        "600029 milliseconds before timing out."
    )
    yield (
        f"[rank{rank}]:[E1129 18:44:12.715398746 ProcessGroupNCCL.cpp:1785] {group} Exception (either an error or "
        "timeout) detected by watchdog at work: 7753, last enqueued NCCL work: 7753, last completed NCCL work: 7752."
    )


def _nccl(rank: int) -> str:
    return f"n{rank // 8}:{4000 + rank}:{4090 + rank} [{rank % 8}] NCCL INFO"


if __name__ == "__main__":
    sys.exit(main())
