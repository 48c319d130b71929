"""How fast the daemon is and what it costs, on a real Slurm: latency, drain rate, rest.

    python -m tests.bench.daemon [--scratch DIR] [--only latency,drain,rest]

Needs root and Slurm's daemons (docs/testing.md). The daemon runs with the periods of etc/nccl-slurm.toml. Prints a
table, and last a line with the figures; exit status 0 where every bar holds. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nccl_slurm.daemon.runs import key_of
from nccl_slurm.history.store import Store
from tests.bench.figures import Figure, figure_of, show
from tests.cluster import jobs
from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["main"]

LATENCY_JOBS, DRAIN_JOBS, REST_S = 10, 60, 60.0
#: Bars: seconds from the last record, comments a second, MB, share of a core.
LATENCY_S, DRAIN_RATE, REST_MB, REST_SHARE = 5.0, 10.0, 120.0, 0.01
AGAIN = "; once more"
TICKS = os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp/nccl-slurm-bench"))
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {','.join(PARTS)}")
    chosen = parser.parse_args(argv)
    wanted = [name for name in PARTS if name in chosen.only.split(",")]
    if not wanted:
        parser.error(f"--only: none of {', '.join(PARTS)}")
    try:
        with Cluster(chosen.scratch.absolute()) as cluster:
            cluster.write_daemon_config(daemon_config(cluster))
            figures = [figure for name in wanted for figure in _measured(name, cluster)]
    except ClusterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return show(figures)


def daemon_config(cluster: Cluster) -> str:
    """The test cluster's paths, the default periods, and every failed job in scope."""
    without_periods = re.sub(r"(?ms)^\[daemon\].*?(?=^\[)", "", cluster.daemon_config.read_text())
    return f'{without_periods}\n[scope]\ndefault = "all"\n'


def _measured(name: str, cluster: Cluster) -> list[Figure]:
    """One part, with the load that it met and made."""
    print(f"{name} …", file=sys.stderr)
    figures = PARTS[name](cluster)
    load = os.getloadavg()[0]
    return [Figure(f.name, f.value, f.bar, f.holds, load) for f in figures]


# Latency: from the last node record to comment and report


def latency(cluster: Cluster) -> list[Figure]:
    """One failing job of two nodes after another; nothing else waits."""
    _daemon(cluster)
    script = jobs.plain(Path("/usr/bin/python3"), cluster.programs, "--mode=raise", "--rank=1")
    took = [_one_latency(cluster, script) for _ in range(LATENCY_JOBS)]
    cluster.stop_daemon()
    return [
        figure_of("latency, median", statistics.median(took), "s", LATENCY_S),
        figure_of("latency, max", max(took), "s", LATENCY_S),
    ]


def _one_latency(cluster: Cluster, script: str) -> float:
    """Seconds; begins when the later node has written its record, just before handing it over."""
    job = cluster.sbatch(script, "-N2", "--ntasks-per-node=2")
    cluster.wait_job(job)
    if not wait_until(lambda: cluster.comment(job) != "", 120.0, every=0.1):
        raise ClusterError(f"job {job} has no comment after 120 s\n{cluster.tail('nccl-slurm')}")
    commented = time.time()
    reported = (cluster.shared / "reports" / f"{job}.json").stat().st_mtime
    records = [path.stat().st_mtime for path in cluster.spool.glob(f"*/{job}.*/root/record.json")]
    if len(records) != 2:
        raise ClusterError(f"job {job}: {len(records)} node records, not 2")
    return max(commented, reported) - max(records)


# Drain: jobs that ended, then comments that wait, while the daemon was down


def drain(cluster: Cluster) -> list[Figure]:
    """Each from the daemon's start, which is part of it. The second has nothing to do but to write."""
    array = cluster.sbatch("#!/bin/sh\nexit 1\n", f"--array=1-{DRAIN_JOBS}", "-N1")
    cluster.wait_job(array, timeout=300.0)
    if not wait_until(lambda: _records(cluster) >= DRAIN_JOBS, 120.0, every=0.5):
        raise ClusterError(f"{_records(cluster)} of {DRAIN_JOBS} node records arrived")
    whole = _until_written(cluster, array, "[nccl-slurm: ")
    _queue_again(cluster)
    comments = _until_written(cluster, array, AGAIN)
    return [
        Figure(f"from {DRAIN_JOBS} ended jobs to their comments", f"{DRAIN_JOBS / whole:.3g} jobs/s"),
        figure_of(f"drain of {DRAIN_JOBS} comments", DRAIN_JOBS / comments, "comments/s", DRAIN_RATE, at_least=True),
    ]


def _records(cluster: Cluster) -> int:
    return len(os.listdir(cluster.shared / "new"))


def _until_written(cluster: Cluster, array: str, text: str) -> float:
    """Seconds from the daemon's start until accounting shows ``text`` in all comments of the array."""
    began = time.monotonic()
    _daemon(cluster)

    def all_there() -> bool:
        return sum(text in row["comment"] for row in cluster.sacct(array, "comment")) >= DRAIN_JOBS

    if not wait_until(all_there, 300.0, every=0.1):
        raise ClusterError(f"not all comments came\n{cluster.tail('nccl-slurm')}")
    took = time.monotonic() - began
    cluster.stop_daemon()
    return took


def _queue_again(cluster: Cluster) -> None:
    """As where late records have changed every verdict: a new text for each run of the store."""
    store = Store.open(f"sqlite:///{cluster.scratch}/daemon/store.db")
    for run in store.list_runs(limit=10 * DRAIN_JOBS):
        row = store.comment_of(*key_of(run))
        if row is not None and run.id.partition("_")[1]:
            store.queue_comment(*key_of(run), row.text.replace("; report", f"{AGAIN}; report"), time.time())
    store.close()


# At rest


def rest(cluster: Cluster) -> list[Figure]:
    """Half a minute after the start. Memory is the peak of the daemon and its children together."""
    _daemon(cluster)
    cluster.wait_idle()
    time.sleep(30.0)
    pid = int((cluster.scratch / "pid" / "nccl-slurm.pid").read_text())
    spent, end, peak, alone = _cpu_s(pid), time.monotonic() + REST_S, 0.0, 0.0
    while time.monotonic() < end:
        alone = max(alone, _rss_mb(pid))
        peak = max(peak, alone + sum(map(_rss_mb, _children(pid))))
        time.sleep(0.02)
    share = (_cpu_s(pid) - spent) / REST_S
    cluster.stop_daemon()
    return [
        figure_of("at rest, memory", peak, "MB", REST_MB),
        Figure("of it the daemon itself", f"{alone:.3g} MB"),
        figure_of("at rest, of a core", 100 * share, "%", 100 * REST_SHARE),
    ]


def _cpu_s(pid: int) -> float:
    """User and system time of the process and of the children that it waited for (proc(5): fields 14 to 17)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # a child that has ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _children(pid: int) -> list[int]:
    """Without those that have not yet called exec: until then they share the memory of their parent."""
    lists = (_words(path / "children") for path in Path(f"/proc/{pid}/task").iterdir())
    own = _words(Path(f"/proc/{pid}/cmdline"))
    return [int(word) for words in lists for word in words if _words(Path(f"/proc/{word}/cmdline")) != own]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # a thread that has ended
        return []


def _daemon(cluster: Cluster) -> None:
    cluster.start_daemon(timeout=60.0)


PARTS: dict[str, Callable[[Cluster], list[Figure]]] = {
    "latency": latency,
    "drain": drain,
    "rest": rest,
}


if __name__ == "__main__":
    sys.exit(main())
