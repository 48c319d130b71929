"""``python -m tests.fuzz.run [--seconds N] [--corpus FOLDER] [TARGET…]``: coverage-guided fuzzing of the loaders.

One process a target, with limits on memory and on the time of one input. The last line sums up; status 1 after a crash.
Inputs that crash stay in FOLDER/crashes (by default in a new folder below /var/tmp): each becomes a row of an ordinary
test.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fuzz.targets import TARGETS

MEMORY_MB = 1024
#: Of the wall clock, on a machine that may have other work: a hang, no slowness.
INPUT_S = 60
LONGEST = 1 << 16


@dataclass(frozen=True)
class Outcome:
    target: str
    executions: int
    coverage: int
    crash: str | None
    cpu_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.target}: {self.cpu_s:.0f} s of CPU, {self.executions} executions, coverage {self.coverage}, "
            f"{self.crash or 'no crash'}"
        )


def fuzz(name: str, seconds: int, folder: Path) -> Outcome:
    corpus, crashes = folder / name, folder / "crashes"
    for made in (corpus, crashes):
        made.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed{number}").write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}"]
    place = [f"-artifact_prefix={crashes}/{name}-", "-print_final_stats=1", str(corpus)]
    command = [sys.executable, "-m", "tests.fuzz.one", name, *limits, *place]
    before = _children_cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return replace(outcome(name, done.stderr + done.stdout, done.returncode), cpu_s=_children_cpu_s() - before)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def outcome(name: str, printed: str, status: int) -> Outcome:
    """What libFuzzer printed, as one line."""
    executed = re.findall(r"stat::number_of_executed_units: (\d+)", printed) or re.findall(r"^#(\d+)\t", printed, re.M)
    covered = re.findall(r" cov: (\d+) ", printed)
    crash = None
    if status:
        cause = re.findall(r"Uncaught Python exception: ===\n(.*)", printed) or re.findall(r"ERROR: (.*)", printed)
        crash = f"CRASH: {cause[0] if cause else printed.strip()[-300:]}"
    return Outcome(name, int(executed[-1]) if executed else 0, int(covered[-1]) if covered else 0, crash)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--corpus", type=Path, help="kept and used again; default: a new folder below /var/tmp")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default all: {', '.join(TARGETS)}")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}")
    folder = chosen.corpus or Path(tempfile.mkdtemp(prefix="nccl-slurm-fuzz", dir="/var/tmp"))
    found = []
    for name in chosen.targets or TARGETS:
        found.append(fuzz(name, chosen.seconds, folder))
        print(found[-1], flush=True)
    crashed = [one.target for one in found if one.crash]
    cpu_s, executions = sum(one.cpu_s for one in found), sum(one.executions for one in found)
    coverage = sum(one.coverage for one in found)
    print(
        f"{len(found)} targets: {cpu_s:.0f} s of CPU, {executions} executions, coverage {coverage}, "
        f"{len(crashed)} crashed {' '.join(crashed)}; inputs in {folder}"
    )
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
