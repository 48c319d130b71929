"""What a job costs by its size: from raw files to a report, and from node records to a verdict.

    python -m tests.bench.scale [--scratch DIR] [--ranks 8,64,512,4096,16384] [--files 1024] [--only files,records]

*files*: a simulated hang of so many ranks (`nccl_slurm.testing`), each rank's log filled up with a trainer's steps to
1 MB, read by ``nccl-slurm report --logs --json``; ``cat`` of the same files beside it. *records*: the same hang's node
records, packed as the daemon's store holds them (numbers and schema are looked at when they come in); a process of its
own loads them, puts the evidence together and attributes, as the daemon does. CPU seconds are user and system time of
that process and of what it started, its start and imports with it; memory is its largest resident set. What is written
into DIR is used again. Prints a table, last a line with the figures; exit status 0 where every bar holds.
docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NoReturn

from nccl_slurm.daemon.diagnose import Parts, collector_at_rest, judged
from nccl_slurm.history.database import packed, unpacked_record
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Parsed
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.testing import Hang, Scenario, Story, job, node_records, simulate, write
from tests.bench.figures import Figure, figure_of, show
from tests.bench.scan import steps

__all__ = ["main"]

FILES, SIZES = 1024, (8, 64, 512, 4096, 16384)
FILE_BYTES = 1_000_000
PACKED = ".json.z"
TURNS = 3
#: Bars: CPU seconds and MB for 1,024 files; for 16,384 ranks' records; cost of a rank at the largest size, times that
#: at the largest size but one.
FILES_S, FILES_MB = 10.0, 500.0
RECORDS_S, RECORDS_MB = 5.0, 1000.0
GROWTH = 1.3


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    mb: float

    @classmethod
    def of(cls, command: Sequence[str]) -> Cost:
        """The median of three runs, and the largest size."""
        each = [cls._once(command) for _ in range(TURNS)]
        return cls(median(one.cpu_s for one in each), max(one.mb for one in each))

    @classmethod
    def _once(cls, command: Sequence[str]) -> Cost:
        """Its output is read and thrown away. Raises SystemExit where it fails."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[:1], str(Path.cwd())])}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        assert child.stdout is not None
        while child.stdout.read(1 << 20):
            pass
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"bench: {command[:4]} ended with status {child.returncode}")
        return cls(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, help="where files are written (default: a temporary folder)")
    parser.add_argument("--ranks", default=",".join(map(str, SIZES)), help="sizes for the records")
    parser.add_argument("--files", type=int, default=FILES, help="ranks with a file each")
    parser.add_argument("--only", default="files,records")
    parser.add_argument("--verdict", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.verdict is not None:
        _verdict(options.verdict)
    sizes = sorted(int(size) for size in options.ranks.split(","))
    scratch = options.scratch or Path(tempfile.mkdtemp(prefix="nccl-slurm-scale-"))
    try:
        figures = list(_of_files(scratch, options.files)) if "files" in options.only else []
        figures += list(_of_records(scratch, sizes)) if "records" in options.only else []
        return show([replace(figure, load=os.getloadavg()[0]) for figure in figures])
    finally:
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)


def _story(ranks: int) -> Story:
    """Rank 13 (or 3) hangs; all others time out, all dump."""
    return simulate(Scenario(world=ranks, output="redirects", events=[Hang(13 if ranks > 13 else 3, 40)], seed=1))


# --- raw files


def _of_files(scratch: Path, ranks: int) -> Iterator[Figure]:
    folder = scratch / f"files-{ranks}"
    _made(_filled, folder, ranks)
    names = [str(path) for path in folder.rglob("*") if path.is_file()]
    total = sum(os.path.getsize(name) for name in names) / 1e6
    print(f"{ranks} ranks: {len(names)} files, {total:.0f} MB", file=sys.stderr)
    plain = Cost.of(["cat", *names])
    cost = Cost.of([sys.executable, "-m", "nccl_slurm.cli.main", "report", "--logs", str(folder), "--json"])
    yield Figure(f"cat of {ranks} ranks x 1 MB", f"{plain.cpu_s:.3g} s")
    yield _barred(f"report of {ranks} ranks x 1 MB", cost.cpu_s, "s", FILES_S, ranks == FILES)
    yield _barred(f"report of {ranks} ranks x 1 MB, memory", cost.mb, "MB", FILES_MB, ranks == FILES)


def _made(make: Callable[[Path, int], None], folder: Path, ranks: int) -> None:
    """In a process of its own: a child's largest size, as the kernel counts it, begins with that of its parent."""
    child = get_context("fork").Process(target=make, args=(folder, ranks))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"bench: {folder} could not be filled")


def _filled(folder: Path, ranks: int) -> None:
    """Each rank's own words come after so many steps that all its files have 1 MB."""
    if not folder.exists():
        story = _story(ranks)
        write(story, folder)
        for path in sorted(folder.rglob("stderr.log")):
            own = path.read_bytes()
            rank = int(path.parent.name)
            room = FILE_BYTES - len(own) - 10_000
            with path.open("wb") as file:
                for line in steps(rank):
                    room -= file.write(f"{line}\n".encode())
                    if room <= 0:
                        break
                file.write(own)
            os.utime(path, (story.end, story.end))


# --- node records


def _of_records(scratch: Path, sizes: Sequence[int]) -> Iterator[Figure]:
    costs = {}
    for ranks in sizes:
        folder = scratch / f"records-{ranks}"
        _made(_recorded, folder, ranks)
        cost = Cost.of([sys.executable, "-m", "tests.bench.scale", "--verdict", str(folder)])
        plain = Cost.of(["cat", *map(str, folder.glob(f"*{PACKED}"))])
        costs[ranks] = cost
        print(f"{ranks} ranks: {cost.cpu_s:.2f} s, {cost.mb:.0f} MB, cat {plain.cpu_s:.2f} s", file=sys.stderr)
        barred = ranks == SIZES[-1]
        yield _barred(f"verdict of {ranks} ranks", cost.cpu_s, "s", RECORDS_S, barred)
        yield Figure(f"cat of {ranks} ranks' records", f"{plain.cpu_s:.3g} s")
        if barred:
            yield _barred(f"verdict of {ranks} ranks, memory", cost.mb, "MB", RECORDS_MB, barred)
    if len(costs) > 1:
        yield _growth(costs)


def _growth(costs: dict[int, Cost]) -> Figure:
    """Of the cost of one rank, without what an empty process costs (the smallest size)."""
    smallest, *_, before, last = sorted(costs) if len(costs) > 2 else (min(costs), min(costs), max(costs))
    base = costs[smallest].cpu_s if len(costs) > 2 else 0.0
    each = [(costs[size].cpu_s - base) / size for size in (before, last)]
    ratio = each[1] / each[0] if each[0] > 0 else 1.0
    return figure_of(f"cost of a rank, {last} to {before} ranks", ratio, "x", GROWTH)


def _barred(name: str, value: float, unit: str, bar: float, barred: bool) -> Figure:
    return figure_of(name, value, unit, bar) if barred else Figure(name, f"{value:.3g} {unit}")


def _recorded(folder: Path, ranks: int) -> None:
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        story, rows = _story(ranks), load_rows()
        for host, record in node_records(story, rows):
            (folder / f"{host}{PACKED}").write_bytes(packed(record))
        (folder / "done").write_text(str(ranks))


@collector_at_rest()
def _verdict(folder: Path) -> NoReturn:
    """The measured process."""
    ranks = int((folder / "done").read_text())
    rows = [_row(path) for path in sorted(folder.glob(f"*{PACKED}"))]
    scenario = Scenario(world=ranks)
    known = job(Story(scenario, None, [], None, state="FAILED", end=scenario.start + 900))  # type: ignore[arg-type]
    _, verdict = judged(Parts(known, rows, (), Parsed(), ("head",)))
    found = [culprit.rank for culprit in verdict.culprits]
    print(verdict.failure_class, found, flush=True)
    os._exit(0 if found == [13 if ranks > 13 else 3] else 1)  # a daemon does not take all objects apart at this point


def _row(path: Path) -> RecordRow:
    record = unpacked_record(path.read_bytes())
    return RecordRow("simulated", 4711, 1, path.name.removesuffix(PACKED), 0.0, "", False, record)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
