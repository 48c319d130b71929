"""The doctor on 1,000 simulated nodes: all of it but the nodes' own time, which is waited for, and the network.

    python -m tests.bench.doctor [--nodes N] [--answer-s MEDIAN] [--at-once N]

Each node is a p5 whose answer was really gathered, once, from the tree of a machine that stands in; it comes after a
time drawn from a log-normal distribution (the same in each run). One node never answers and is given up at its limit,
two miss a GPU. Bars: two minutes in all; the node that hangs costs itself alone: all others are seen, and the last of
them no later than without it; the two are found, and no third. Prints a table, and last a line with the figures; exit
status 0 where every bar holds. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nccl_slurm import schema
from nccl_slurm.config import Config
from nccl_slurm.doctor import registry
from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.gather import MARK
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.doctor.reach import Unreached
from nccl_slurm.doctor.result import Result
from nccl_slurm.doctor.run import Wish, run
from nccl_slurm.doctor.slurm import AskedSlurm
from tests.bench.figures import Figure, figure_of, show
from tests.doctor.machines import of

__all__ = ["main"]

NODES, ANSWER_S, SPREAD, LIMIT_S = 1000, 6.0, 0.4, 45.0
#: Bars: seconds in all, and by how much the others may be later for the node that hangs.
ALL_S, LATER = 120.0, 1.1
#: What a node that gives nothing takes until it is given up, beyond its limit.
SPARE_S = 15.0
#: What one core takes for a node's answer beside the doctor's own: a client of srun or SSH.
_CONFIG = """AccountingStorageType = accounting_storage/slurmdbd
ClusterName = bench
SLURM_VERSION = 24.11.5
SlurmctldHost[0] = c1
SlurmUser = slurm(64030)
"""
_NODE = (
    "NodeName={name} Arch=x86_64 Gres=gpu:8 NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux x "
    "RealMemory=2000000 State=IDLE Partitions=gpu CfgTRES=cpu=192,gres/gpu=8 BootTime=1789000000\n"
)


@dataclass
class Simulated:
    """``answers``: node → packed observation, the empty name for all others. ``waits``: node → s."""

    answers: Mapping[str, bytes]
    waits: Mapping[str, float]
    hanging: str
    name: str = "ssh"
    last: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        if node == self.hanging:
            time.sleep(limit_s + SPARE_S)
            raise Unreached(f"no answer within {limit_s + SPARE_S:g} s")
        time.sleep(self.waits[node])
        with self._lock:
            self.last = max(self.last, time.monotonic())
        return self.answers.get(node, self.answers[""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES, help="the bars are for 1,000 (default)")
    parser.add_argument("--answer-s", type=float, default=ANSWER_S, help="median of a node's own time (default 6)")
    parser.add_argument("--at-once", type=int, default=Wish.at_once)
    options = parser.parse_args(argv)
    names = [f"n{number}" for number in range(1, options.nodes + 1)]
    hanging, broken = names[len(names) // 2], {names[7], names[-7]}
    sound, bad = (_packed(gpus) for gpus in (8, 7))
    figures = []
    times = []
    for silent in ("", hanging):
        way = Simulated({"": sound, **dict.fromkeys(broken, bad)}, _waits(names, options.answer_s), silent)
        began = time.monotonic()
        result = _run(names, way, options.at_once)
        took, others = time.monotonic() - began, way.last - began
        times.append(others)
        what = "one hangs" if silent else "all answer"
        figures += [_figure(f"{options.nodes} nodes, {what}", took, ALL_S), *_right(result, silent, broken, what)]
    figures.append(_figure("the others, one hangs: seen after", times[1], max(times[0] * LATER, times[0] + 2.0)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures.append(Figure("memory", f"{memory:.0f} MiB", load=os.getloadavg()[0]))
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) / (2 * len(names))
    figures.append(Figure("CPU a node", f"{cpu * 1000:.1f} ms", load=os.getloadavg()[0]))
    return show(figures)


def _figure(name: str, seconds: float, bar: float) -> Figure:
    return replace(figure_of(name, seconds, "s", round(bar, 1)), load=os.getloadavg()[0])


def _waits(names: Sequence[str], median: float) -> Mapping[str, float]:
    draw = random.Random(7)  # the same in each run
    return {name: median * draw.lognormvariate(0.0, SPREAD) for name in names}


def _packed(gpus: int) -> bytes:
    """A node's answer to all that node and fleet checks ask, really gathered."""
    machine = of("p5")
    machine.gpus = machine.gpus[:gpus]
    keys = {key for check in registry.checks("node", "fleet", "scheduler") for key in check.sources}
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-bench-") as folder:
        seen = machine.look(Path(folder), sorted(keys))
    return _as_told(seen)


def _as_told(seen: Observation) -> bytes:
    told = {"observation": 1, "found": seen.found, "uid": 0, "end": time.time(), "boot_time": seen.boot_time}
    packed = base64.b64encode(zlib.compress(json.dumps({**told, "boot_id": "b", "kernel": seen.kernel}).encode(), 6))
    return MARK.encode() + packed + b"\n"


def _run(names: Sequence[str], way: Simulated, at_once: int) -> Result:
    texts: dict[str, str | NotObserved] = {
        "ping": "Slurmctld(primary) at c1 is UP\n",
        "config": _CONFIG,
        "nodes": "".join(_NODE.format(name=name) for name in names),
        "partitions": "PartitionName=gpu State=UP\n",
        "queue": "",
        "slurmdbd": "bench|10.0.0.1|6817\n",
    }
    slurm = AskedSlurm(Config(), None, _kept=texts)
    wish = Wish(nodes=f"n[1-{len(names)}]", aws=False, limit_s=LIMIT_S, at_once=at_once)
    result = run(wish, Config(), slurm=slurm, ways=lambda node: [way])
    schema.loads(json.dumps(result.to_json()).encode(), "doctor/1")
    return result


def _right(result: Result, silent: str, broken: set[str], what: str) -> list[Figure]:
    unseen = set(result.looked.silent)
    short = {
        node for one in result.findings if (one.check, one.status) == ("node.gpu-count", "FAIL") for node in one.nodes
    }
    load = os.getloadavg()[0]
    return [
        Figure(f"nodes unseen, {what}", str(len(unseen)), str(int(bool(silent))), unseen == {silent} - {""}, load),
        Figure(f"GPU missing, {what}", str(len(short)), str(len(broken)), short == broken, load),
    ]


if __name__ == "__main__":
    sys.exit(main())
