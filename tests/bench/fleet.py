"""The history of a large fleet: what a poll costs that changes nothing, the daemon's memory, queries, the store's size.

    python -m tests.bench.fleet [--nodes 10000] [--days 730] [--scratch DIR]

No Slurm: the daemon's own loop over a client that gets the text of one ``scontrol -o show nodes``. The history is that
of `Site`: runs that went well are counted as retention would have done it by then. Prints a table, and last a line with
the figures; exit status 0 where every bar holds. docs/performance.md keeps the results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from nccl_slurm.clock import MovableClock
from nccl_slurm.config import Config, Paths
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.history.events import _digest
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.packing import packed_event
from nccl_slurm.history.rollup import DAY_S, MONTH_S, rolled_up
from nccl_slurm.history.rows import NodeEventRow, RecommendationRow, RunRow
from nccl_slurm.history.schema import machine_events, node_events
from nccl_slurm.history.store import Store
from nccl_slurm.review.queue import by_daemon
from nccl_slurm.scheduler.cli_client import Answer, CliClient
from tests.bench.figures import Figure, figure_of, show

__all__ = ["Site", "main"]

#: Bars: seconds of CPU, MB, milliseconds, GB.
POLL_S, MEMORY_MB, QUERY_MS, SIZE_GB, DRAINS_S = 1.0, 250.0, 50.0, 2.0, 1.0
POLLS, QUERIES, LOOKS = 5, 200, 5
#: One node of so many is drained, one of so many of these has a recommendation.
OUT_OF, ASKED_OF = 33, 10
JOB_NODES = 1024
#: Different pasts, dealt out to the machines; machines in one transaction.
PASTS, BATCH = 200, 50
NOW = 1_800_000_000.0
SIZES = (1, 1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Site:
    """A day of one node, on average. Failures are those of large public training fleets (6.5 in 1,000 node-days)."""

    runs: float = 4.0
    failed_share: float = 0.08
    states: float = 0.1
    boots: float = 1 / 30
    faults: float = 0.0065


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=730)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.measure:
        return _measure(chosen.measure, chosen.nodes)
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as folder:
        figures = _figures(Path(folder), chosen.nodes, chosen.days)
    load = os.getloadavg()[0]
    return show([replace(figure, load=load) for figure in figures])


def _figures(folder: Path, nodes: int, days: int) -> list[Figure]:
    """The daemon is a process of its own: its memory is not that of what made the store."""
    names = [f"gpu-{number:05d}" for number in range(nodes)]
    (folder / "nodes.txt").write_text("".join(_line(name, number) for number, name in enumerate(names)))
    began = time.monotonic()
    events = _fill(folder, names, days)
    print(f"store of {events} events made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    size = (folder / "store.db").stat().st_size / 1e9
    command = [sys.executable, "-m", "tests.bench.fleet", "--measure", str(folder), "--nodes", str(nodes)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    poll, judged, memory, median, slowest, part, whole, whole_memory = map(float, told)
    listed, waited, drains = _drains(folder)
    return [
        figure_of("a poll that changes nothing, CPU", poll, "s", POLL_S),
        Figure(f"the past that a failed job of {min(nodes, JOB_NODES)} nodes is judged by, CPU", f"{judged:.2g} s"),
        figure_of("memory of the daemon, peak", memory, "MB", MEMORY_MB),
        figure_of("one node, median", median, "ms", QUERY_MS),
        figure_of(f"one node, CPU of the dearest of {QUERIES}", slowest, "ms", QUERY_MS),
        Figure("90 days of 1,000 machines", f"{part:.2g} s"),
        Figure(f"{days} days of all machines, CPU", f"{whole:.2g} s"),
        Figure("its memory, peak", f"{whole_memory:.3g} MB"),
        figure_of(f"drains, {listed} nodes, CPU of the command", drains, "s", DRAINS_S),
        Figure("the same, by the clock", f"{waited:.2g} s"),
        figure_of(f"store, {nodes} nodes, {days} days", size, "GB", SIZE_GB),
        Figure("events a machine", f"{events / nodes:.0f}"),
    ]


def _drains(folder: Path) -> tuple[int, float, float]:
    """How many nodes the command lists, how long it takes from its start to its end, and seconds of CPU: medians."""
    (folder / "site.toml").write_text(f'[paths]\nstate = "{folder}"\n')
    start = "from nccl_slurm.cli.main import main; main()"
    command = [sys.executable, "-c", start, "drains", "--json", "--config", str(folder / "site.toml")]
    took, cpu, text = [], [], ""
    for _ in range(LOOKS):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(time.perf_counter() - began)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    rows = json.loads(text)["nodes"]
    assert any(row["recommendation"] for row in rows), "nothing is recommended"
    return len(rows), statistics.median(took), statistics.median(cpu)


def _line(name: str, number: int) -> str:
    """As 24.11 prints a node of eight GPUs."""
    drained = number % OUT_OF == 0
    why = "Reason=NHC: check_fs_mount: /data not mounted [root@2027-01-15T07:00:00]" if drained else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=48 CPUAlloc=96 CPUEfctv=192 CPUTot=192 CPULoad=61.20 "
        "AvailableFeatures=h100,efa ActiveFeatures=h100,efa Gres=gpu:h100:8(S:0-1) "
        f"NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux 6.8.0-1015-aws #16-Ubuntu SMP "
        "RealMemory=2000000 AllocMem=1000000 FreeMem=900000 Sockets=2 Boards=1 "
        f"State=MIXED{'+DRAIN' if drained else ''} ThreadsPerCore=2 TmpDisk=0 "
        f"Weight=1 Owner=N/A MCS_label=N/A Partitions=main,low BootTime={int(NOW) - 900000} "
        f"SlurmdStartTime={int(NOW) - 899900} LastBusyTime={int(NOW) - 60} ResumeAfterTime=None "
        "CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8 AllocTRES=cpu=96,gres/gpu=4 CurrentWatts=0 AveWatts=0 "
        f"{why}\n"
    )


# A history


def _fill(folder: Path, names: Sequence[str], days: int) -> int:
    """How many events, states among them. Straight into the tables: eight million of them."""
    pasts = [_rows(random.Random(number), days) for number in range(min(PASTS, len(names)))]
    made = 0
    with Store.open(f"sqlite:///{folder}/store.db") as store:
        store.name_machines(names, NOW - days * DAY_S)
        machines = store.machines_now()
        for first in range(0, len(names), BATCH):
            batch = names[first : first + BATCH]
            with store._writing() as connection:
                for number, name in enumerate(batch, start=first):
                    rows = [{**row, "machine": machines[name].number} for row in pasts[number % PASTS]]
                    states = [*_states(random.Random(number), name, days)]
                    connection.execute(insert(machine_events), rows)
                    connection.execute(insert(node_events), states)
                    made += len(rows) + len(states)
        _recommend(store, names[:: OUT_OF * ASKED_OF])
    return made


def _recommend(store: Store, names: Sequence[str]) -> None:
    for name in names:
        asked = RecommendationRow(
            identity=name,
            node=name,
            action="reboot",
            rule="ladder.reboot",
            step=1,
            why="GPU has fallen off the bus",
            evidence=("f1",),
            commands=(f'scontrol reboot ASAP nextstate=RESUME reason="x" {name}',),
            failure_class="gpu-hw-lost",
            cluster="bench",
            raw_id=1,
            run=1,
            job="1",
            opened=NOW,
            changed=NOW,
            expires=NOW + 30 * DAY_S,
        )
        store.save_recommendations([(asked, by_daemon(asked, "opened", NOW, "ctl"))])


def _rows(chance: random.Random, days: int) -> list[dict[str, Any]]:
    """In the order of the table's key."""
    rows = {(row["time"], row["key"]): row for row in (packed_event(0, event) for event in _past(chance, days))}
    return [rows[key] for key in sorted(rows)]


def _past(chance: random.Random, days: int, site: Site = Site()) -> list[MachineEvent]:
    start = NOW - days * DAY_S
    times = [start + chance.random() * days * DAY_S for _ in range(int(site.runs * days))]
    runs = [_run(chance, at, site) for at in times]
    counted = rolled_up(rolled_up(runs, NOW - 14 * DAY_S, DAY_S), NOW - 100 * DAY_S, MONTH_S)
    return [*counted, *_faults(chance, start, days, site)]


def _run(chance: random.Random, at: float, site: Site) -> MachineEvent:
    data: dict[str, object] = {"job": str(chance.randrange(10**7)), "run": 1, "nodes": chance.choice(SIZES)}
    if chance.random() >= site.failed_share:
        return MachineEvent(at, "job", "well", "daemon", data=data)
    data |= {"class": "rank-exception", "named": chance.random() < 0.1}
    return MachineEvent(at, "job", "failed", "daemon", data=data)


def _faults(chance: random.Random, start: float, days: int, site: Site) -> Iterator[MachineEvent]:
    for _ in range(round(site.boots * days)):
        data = {"by": "root", "reason": "kernel update : reboot issued"}
        yield MachineEvent(start + chance.random() * days * DAY_S, "boot", "asked", "poll", "", None, 1.0, data)
    for _ in range(round(site.faults * days * chance.random() * 2)):
        at, text = start + chance.random() * days * DAY_S, "GPU has fallen off the bus."
        gpu = {"gpu": "0000:a1:00", "xid": 79}
        yield MachineEvent(at, "fault", "kernel.xid", "kernel", text, "gpu-hw-lost", 1.0, gpu)


def _states(chance: random.Random, name: str, days: int, site: Site = Site()) -> Iterator[Mapping[str, object]]:
    for _ in range(int(site.states * days / 2)):
        at = NOW - chance.random() * days * DAY_S
        down = NodeEventRow(name, at, "UP+DRAIN", "NHC: check_fs_mount: /data not mounted", "root")
        for edge in (down, NodeEventRow(name, at + 3600.0, "UP")):
            yield {**vars(edge), "digest": _digest(edge)}
    end = NodeEventRow(name, NOW, "UP")
    yield {**vars(end), "digest": _digest(end)}


# The daemon


def _measure(folder: Path, nodes: int) -> int:
    """Prints two times seconds of CPU, MB, milliseconds, milliseconds of CPU, seconds, seconds of CPU, MB."""
    text = (folder / "nodes.txt").read_text()
    answers = {
        "show config": "ClusterName = bench\nAccountingStorageType = accounting_storage/none\n",
        "-o -a": text,
        "ping": "Slurmctld(primary) at ctl is UP\n",
    }

    def run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        words = " ".join(argv[1:])
        return Answer(0, next((answer for start, answer in answers.items() if words.startswith(start)), ""), "")

    config, clock = Config(paths=Paths(str(folder), "", str(folder))), MovableClock(NOW + 60.0)
    client = CliClient(run=run)
    with Store.open(f"sqlite:///{folder}/store.db") as store:
        daemon = Daemon(config, client, store, clock, OutputReader("", 1.0), client.settings())
        for _ in range(2):  # the first one keeps boot times and how far states are known
            daemon._poll_nodes()
            clock.sleep(30.0)
        writes, began = store.writes, time.process_time()
        for _ in range(POLLS):
            daemon._poll_nodes()
            clock.sleep(30.0)
        poll = (time.process_time() - began) / POLLS
        assert store.writes - writes <= POLLS, "a poll that changes nothing stored something"
        job = RunRow("bench", 1, 1, "1", nodes=[f"gpu-{n:05d}" for n in range(min(nodes, JOB_NODES))], start=NOW)
        spent = time.process_time()
        past = daemon._conclusions.around.past(job)
        judged, peak = time.process_time() - spent, _peak_mb()
        assert len(past) >= len(job.nodes)
    print(poll, judged, peak, *_queries(folder, nodes))
    return 0


def _peak_mb() -> float:
    """Of this process (proc(5), VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def _queries(folder: Path, nodes: int) -> tuple[float, float, float, float, float]:
    chance, took, cpu = random.Random(1), [], []
    names = [f"gpu-{chance.randrange(nodes):05d}" for _ in range(QUERIES)]
    with Store.open(f"sqlite:///{folder}/store.db", read_only=True) as store:
        for name in names:
            began, spent = time.perf_counter(), time.process_time()
            machine = store.machine(name)
            took.append(1000 * (time.perf_counter() - began))
            cpu.append(1000 * (time.process_time() - spent))
            assert len(machine.events) > 100, f"{name} has no past"
        began = time.perf_counter()
        seen = [f"gpu-{number:05d}" for number in range(min(nodes, 1000))]
        sum(len(machine.events) for machine in store.machines(seen, since=NOW - 90 * DAY_S))
        part, spent = time.perf_counter() - began, time.process_time()
        assert sum(1 for _ in store.machines()) == nodes
        return statistics.median(took), max(cpu), part, time.process_time() - spent, _peak_mb()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
