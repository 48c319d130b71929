"""What the hooks cost, on a real Slurm: ours against /bin/true in the same places of the same cluster, in one run.

    python -m tests.bench.hooks [--scratch DIR] [--jobs N] [--only idle,logs,stream]

Needs root and Slurm's daemons (docs/testing.md). slurm.conf names four fixed places; the files there are exchanged by a
rename, and jobs come in pairs, one with ours and one with /bin/true, in turns (ABBA). A job begins when the record of
the one before it has been handed over, so that no worker of ours burdens a job of /bin/true.

Times are not polled. The end of a job, and the end of its epilog, which is when its node is idle, are lines in
slurmctld's log (``_job_complete … done`` and ``_slurm_rpc_epilog_complete``, to the millisecond). A first task tells
its own time; submission is when srun is started. Differences are of medians and of 95th percentiles; the interval
beside a figure is that of 95 % of 2,000 resamplings of the pairs. Prints a table, and last a line with the figures;
exit status 0 where every bar holds. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tests.bench.figures import Figure, show
from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["main"]

JOBS, TASKS = 200, 8
#: A stream has as many jobs; one pair of streams for as many jobs of the other parts.
STREAM_JOBS, JOBS_A_STREAM = 40, 25
LOG_BYTES = 200_000_000
#: Bars: ms from a job's end to its idle node, ms from submission to the first task, share of /bin/true's jobs a second.
IDLE_MS, IDLE_P95_MS, FIRST_TASK_MS, STREAM_SHARE = 15.0, 50.0, 20.0, 0.95
PLACES = ("prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm", "task_prolog", "epilog_slurmctld")
NOTHING = Path("/bin/true")

_STAMP = r"\[(\S+)\] "
_DONE = re.compile(_STAMP + r"_job_complete: JobId=(\S+) done")
_IDLE = re.compile(_STAMP + r"debug2: _slurm_rpc_epilog_complete: JobId=(\S+) Node=")
_STARTED = re.compile(_STAMP + r"sched(?:/backfill: _start_job: Started|: Allocate) JobId=(\S+)")

Pair = tuple[float, float]  # ours, /bin/true's
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp/nccl-slurm-bench"))
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of each kind; the bars are for 200 (default)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {','.join(PARTS)}")
    chosen = parser.parse_args(argv)
    wanted = [name for name in PARTS if name in chosen.only.split(",")]
    if not wanted or chosen.jobs < 2:
        parser.error("nothing to measure")
    try:
        with Cluster(chosen.scratch.absolute(), extra=["SlurmctldDebug=debug2"]) as cluster:
            figures = [figure for name in wanted for figure in _measured(name, Bench(cluster), chosen.jobs)]
    except ClusterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return show(figures)


def _measured(name: str, bench: Bench, jobs: int) -> list[Figure]:
    """One part, with the load that it met and made."""
    print(f"{name} …", file=sys.stderr)
    figures = PARTS[name](bench, jobs)
    load = os.getloadavg()[0]
    return [Figure(f.name, f.value, f.bar, f.holds, load) for f in figures]


@dataclass(frozen=True)
class Job:
    """In ms."""

    first_task: float
    idle: float


class Bench:
    """The cluster with its hooks moved aside, and links where slurm.conf looks for them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._log = cluster.log / "slurmctld.log"
        self._places = cluster.scratch / "prefix" / "slurm"
        self._ours = cluster.scratch / "prefix" / "ours"
        for place in () if self._ours.exists() else PLACES:
            (self._ours / place).parent.mkdir(parents=True, exist_ok=True)
            (self._places / place).rename(self._ours / place)
        self.use(ours=True)

    def use(self, *, ours: bool) -> None:
        for place in PLACES:
            link = self._ours / "link"
            link.symlink_to(self._ours / place if ours else NOTHING)
            link.rename(self._places / place)

    def in_turns(self, pairs: int, measure: Callable[[int], T]) -> list[tuple[T, T]]:
        """``measure`` gets the pair's number and is called twice a pair. Ours come first in each pair that is told."""
        found = []
        for number in range(pairs):
            values: dict[bool, T] = {}
            for ours in (True, False) if number % 2 == 0 else (False, True):
                self.use(ours=ours)
                values[ours] = measure(number)
                self.settle()
            found.append((values[True], values[False]))
        return found

    def settle(self) -> None:
        """Until nothing of ours is left to do."""
        if not wait_until(lambda: not self._queued(), 120.0, every=0.02):
            raise ClusterError(f"still queued: {self._queued()}")

    def _queued(self) -> list[str]:
        return [str(path) for path in self.cluster.spool.glob("*/queue/*.*") if path.name[:5] != "lock."]

    def step(self, node: str, *task: str) -> Job:
        """One job of `TASKS` tasks on ``node``; ``task`` prints the time of its begin first."""
        before = self.log_size()
        began = time.time()
        who = ["srun", f"--nodelist={node}", "--nodes=1", f"--ntasks={TASKS}", "--exclusive"]
        told = self.cluster.run([*who, *task], user="alice").stdout
        first = min(map(float, re.findall(r"(?m)^\d+\.\d+$", told)))
        done, idle = self.stamps(before, 1, _DONE)[0], self.stamps(before, 1, _IDLE)[0]
        return Job(1000 * (first - began), 1000 * (idle - done))

    def log_size(self) -> int:
        return self._log.stat().st_size

    def stamps(self, offset: int, count: int, line: re.Pattern[str], timeout: float = 120.0) -> list[float]:
        """Of the first ``count`` such lines after ``offset`` bytes, in seconds; waits for them."""
        found: list[tuple[str, str]] = []

        def there() -> bool:
            with self._log.open("rb") as file:
                file.seek(offset)
                found[:] = line.findall(file.read().decode("utf-8", "replace"))
            return len(found) >= count

        if not wait_until(there, timeout, every=0.02):
            raise ClusterError(f"slurmctld's log has {len(found)} of {count} lines {line.pattern!r}")
        return [datetime.fromisoformat(stamp).timestamp() for stamp, _ in found[:count]]

    def node(self, number: int) -> str:
        """In turns: where a worker waits for more work, the next jobs are elsewhere."""
        return self.cluster.nodes[number % len(self.cluster.nodes)]


# From submission to the first task, and from the end to the idle node


def idle(bench: Bench, jobs: int) -> list[Figure]:
    """Tasks that end at once and leave no log."""
    firsts, idles = _steps(bench, jobs, "date", "+%s.%N")
    shown = _more_ms("submission to first task, more at the median", firsts, statistics.median, FIRST_TASK_MS)
    return [shown, *_idle_figures("end to idle", idles)]


def logs(bench: Bench, jobs: int) -> list[Figure]:
    """Each rank links the same file into the run's folder, so that the run has `TASKS` logs of 200 MB.

    The worker is at them while the time is taken. Then the file is cut, so that it ends soon: the logs were its own.
    """
    file = bench.cluster.home / "rank.log"
    none = bench.cluster.home / "none"
    none.mkdir()
    os.chown(none, bench.cluster.home.stat().st_uid, -1)
    link = f'f=${{NCCL_DEBUG_FILE:-{none}/x}}; ln -f {file} "${{f%/*}}/nccl.host.$SLURM_PROCID.log"'
    began = ["sh", "-c", f"date +%s.%N; {link}"]
    _, idles = _steps(bench, jobs, *began, before=lambda: _write_log(file), after=lambda: os.truncate(file, 0))
    return _idle_figures(f"end to idle, {TASKS} × {LOG_BYTES / 1e6:.0f} MB of logs", idles)


def _steps(
    bench: Bench,
    jobs: int,
    *task: str,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> tuple[list[Pair], list[Pair]]:
    """Pairs of times to the first task, and pairs of times to the idle node."""

    def one(number: int) -> Job:
        before()
        job = bench.step(bench.node(number), *task)
        after()
        return job

    pairs = bench.in_turns(jobs, one)
    return [(a.first_task, b.first_task) for a, b in pairs], [(a.idle, b.idle) for a, b in pairs]


def _write_log(file: Path) -> None:
    line = b"host:4000:4100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n"
    part = line * (1_000_000 // len(line))
    with file.open("wb") as log:
        for _ in range(LOG_BYTES // len(part)):
            log.write(part)
    os.chown(file, file.parent.stat().st_uid, -1)


def _idle_figures(name: str, idles: list[Pair]) -> list[Figure]:
    return [
        _more_ms(f"{name}, more at the median", idles, statistics.median, IDLE_MS),
        _more_ms(f"{name}, more at the 95th percentile", idles, _p95, IDLE_P95_MS),
    ]


# Jobs a second


def stream(bench: Bench, jobs: int) -> list[Figure]:
    """One job after another, as in a loop of a user's; and jobs of a second, all queued at once, on all nodes.

    What is left to the worker after the last one is not part of the time. No bar for jobs that do nothing and are all
    queued at once: with four nodes, their controller and its database on two cores they are bound by what processes
    cost, ours among them, and no node starts jobs that fast."""
    return [
        *_stream(bench, jobs, "jobs a second, one after another", _in_a_loop, STREAM_SHARE),
        *_stream(
            bench, jobs, "jobs a second, of one second each, queued", lambda b: _queued(b, "sleep 1"), STREAM_SHARE
        ),
        *_stream(bench, jobs, "jobs a second, empty, queued", lambda b: _queued(b, "true"), None),
    ]


def _stream(bench: Bench, jobs: int, name: str, rate: Callable[[Bench], float], bar: float | None) -> list[Figure]:
    rates = bench.in_turns(max(2, jobs // JOBS_A_STREAM), lambda _: rate(bench))

    def share(pairs: Sequence[Pair]) -> float:
        return statistics.median(ours / theirs for ours, theirs in pairs)

    found, theirs = share(rates), statistics.median(theirs for _, theirs in rates)
    value = f"{found:.3f} × ({_interval(rates, share, '.3f')}) of {theirs:.3g}"
    if bar is None:
        return [Figure(name, value)]
    return [Figure(name, value, f"≥ {bar} ×", found >= bar)]


def _in_a_loop(bench: Bench) -> float:
    loop = f"for _ in $(seq {STREAM_JOBS}); do srun --nodes=1 --ntasks=1 true || exit; done"
    began = time.monotonic()
    bench.cluster.run(["sh", "-c", loop], user="alice", timeout=600.0)
    return STREAM_JOBS / (time.monotonic() - began)


def _queued(bench: Bench, script: str) -> float:
    """From the first one's start to the last one's idle node."""
    before = bench.log_size()
    options = [f"--array=1-{STREAM_JOBS}", "-N1", "--exclusive", "--output=/dev/null"]
    bench.cluster.sbatch(f"#!/bin/sh\n{script}\n", *options)
    ends = bench.stamps(before, STREAM_JOBS, _IDLE)
    return STREAM_JOBS / (max(ends) - bench.stamps(before, 1, _STARTED)[0])


# Figures


def _more_ms(name: str, pairs: list[Pair], of: Callable[[Sequence[float]], float], bar: float) -> Figure:
    def more(some: Sequence[Pair]) -> float:
        return of([ours for ours, _ in some]) - of([theirs for _, theirs in some])

    found, theirs = more(pairs), of([theirs for _, theirs in pairs])
    value = f"{found:.1f} ms ({_interval(pairs, more, '.1f')}) on {theirs:.0f} ms"
    return Figure(name, value, f"≤ {bar:g} ms", found <= bar)


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _interval(pairs: Sequence[Pair], of: Callable[[Sequence[Pair]], float], form: str) -> str:
    chance = random.Random(1)
    drawn = sorted(of(chance.choices(pairs, k=len(pairs))) for _ in range(2000))
    return f"{drawn[49]:{form}} to {drawn[1949]:{form}}"


PARTS: dict[str, Callable[[Bench, int], list[Figure]]] = {"idle": idle, "logs": logs, "stream": stream}


if __name__ == "__main__":
    sys.exit(main())
