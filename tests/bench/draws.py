"""Draws simulated jobs of every class, with clocks that are off and records that are missing, and judges the verdicts.

    python -m tests.bench.draws [--draws N] [--ranks N] [--seed N] [--jobs N] [--only CLASS,…] [--wrong]

Each draw goes the daemon's way: node records (through their schema) and the job's output → evidence → verdict. A table
by class: draws; class right; of those whose culprit what was written down proves: right, missed; nobody named where
nobody is proven; named rightly beyond that; false accusations. Exit status 0 where at least 98 % of the provable
culprits are named and nobody else ever is. docs/testing.md keeps the results.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from tabulate import tabulate

from nccl_slurm.parse.patterns import Rows, load_rows
from nccl_slurm.testing import events
from nccl_slurm.testing.case import Case, case_of
from nccl_slurm.testing.events import XID_CLASSES, Event
from nccl_slurm.testing.scenario import Scenario, blocks, strides

__all__ = ["draw", "main", "tell"]

RIGHT, FALSE = 0.98, 0
STEP, STEPS = 40, 60
#: Draws after which those so far are told: a thousand of 1,024 ranks take most of an hour.
TOLD = 50
TORCH = ((2, 1), (2, 3), (2, 4), (2, 5), (2, 6), (2, 8), (2, 13))
NCCL = ((2, 18), (2, 21), (2, 24), (2, 27), (2, 30))

Make = Callable[[random.Random, Scenario], Sequence[Event]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw; the next ones follow")
    parser.add_argument("--only", default="", help="classes, with commas")
    parser.add_argument("--missing", type=float, default=0.05, help="share of node records that never come")
    parser.add_argument("--wrong", action="store_true", help="tell each draw that is not all right")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options = parser.parse_args(argv)
    wanted = [name for name in MAKERS if not options.only or name in options.only.split(",")]
    if not wanted or options.draws < 1 or options.ranks < 4:
        parser.error("nothing to draw")
    began, found = time.monotonic(), []
    asked = ((wanted[n % len(wanted)], options.seed + n, options.ranks, options.missing) for n in range(options.draws))
    with multiprocessing.get_context("forkserver").Pool(options.jobs, initializer=_rows) as pool:
        for name, seed, one in pool.imap(_drawn, asked):
            found.append((name, one))
            if options.wrong and (not one.class_right or one.culprit in ("missed", "false")):
                print(f"{seed} {name}: {_told(one)}", flush=True)
            if len(found) % TOLD == 0:
                false = sum(case.culprit == "false" for _, case in found)
                took = time.monotonic() - began
                print(f"{len(found)} draws, {false} false, {took:.0f} s", file=sys.stderr, flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return tell(found, options.ranks)


@cache
def _rows() -> Rows:
    """Compiled once a process."""
    return load_rows()


def _drawn(asked: tuple[str, int, int, float]) -> tuple[str, int, Case]:
    return asked[0], asked[1], case_of(draw(*asked), _rows())


def _told(one: Case) -> str:
    named = ", ".join(f"rank {c.rank} on {c.host}: {c.why}" for c in one.verdict.culprits)
    rules = " ".join(step.rule for step in one.verdict.inferences)
    return f"{one.culprit}; {one.verdict.failure_class}; named {named or 'nobody'}; {rules}; truth {one.truth}"


def draw(name: str, seed: int, ranks: int, missing: float = 0.05) -> Scenario:
    """One scenario of a class. The same arguments give the same scenario."""
    chance = random.Random(f"{name}/{seed}")
    plain = _job(chance, seed, ranks, missing)
    made = MAKERS[name](chance, plain)
    values = {**_values(plain), **_WANTS.get(name, {})}
    step = next((event.at for event in made if event.at is not None), None)
    return Scenario(**{**values, "events": (*made, *_decoys(chance, plain, step))})


def _values(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}


def _job(chance: random.Random, seed: int, ranks: int, missing: float) -> Scenario:
    per_node = 8 if ranks >= 32 else 4
    backend = "gloo" if chance.random() < 0.2 else "nccl"
    kinds = [(), blocks(ranks, per_node), strides(ranks, per_node)]
    return Scenario(
        world=ranks,
        per_node=per_node,
        backend=backend,
        network=chance.choice(("IB", "IB", "Socket", "AWS Libfabric")),
        launcher=chance.choice(("torchrun", "torchrun", "srun")),
        output=chance.choice(("job", "label", "redirects")),
        torch=chance.choice(TORCH),
        nccl=chance.choice(NCCL),
        groups=chance.choices(kinds, (3, 1, 1))[0],
        steps=STEPS,
        timeout_s=chance.choice((60.0, 600.0, 1800.0)),
        run_ahead=chance.choice((0, 0, 4)),
        kill_on_bad_exit=chance.random() < 0.5,
        record=chance.random() < 0.7,
        dumps=chance.random() < 0.7,
        noise=chance.random() < 0.5,
        skew_s=chance.choice((0.05, 2.0, 30.0)),
        offset_told=chance.random() < 0.7,
        missing=missing,
        missing_files=chance.choice((0.0, 0.0, 0.02)),
        seed=seed,
    )


def _decoys(chance: random.Random, scenario: Scenario, step: int | None) -> Iterator[Event]:
    """What programs print: words that sound like a cause, and are none."""
    texts = (
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "WARNING: gradient norm is inf, skipping step",
        "retrying after ConnectionResetError: [Errno 104] Connection reset by peer",
    )
    if step and chance.random() < 0.3:
        yield events.Say(chance.randrange(scenario.world), step - 1, chance.choice(texts))


def _rank(chance: random.Random, scenario: Scenario) -> int:
    return chance.randrange(scenario.world)


def _host(chance: random.Random, scenario: Scenario) -> str:
    return chance.choice(scenario.nodes)


def _pair(chance: random.Random, scenario: Scenario) -> tuple[int, int]:
    """Ring neighbours on two nodes."""
    last = scenario.on(_host(chance, scenario))[-1]
    return last, (last + 1) % scenario.world


def _raise(texts: Sequence[str], failure: str) -> Make:
    return lambda chance, job: [events.Raise(_rank(chance, job), STEP, chance.choice(texts), failure)]


def _xid(failure: str) -> Make:
    numbers = [number for number, kind in XID_CLASSES.items() if kind == failure]
    return lambda chance, job: [events.Xid(_rank(chance, job), STEP, chance.choice(numbers))]


def _exception(chance: random.Random, job: Scenario) -> list[Event]:
    texts = (
        "ValueError: loss is nan",
        "KeyError: 'input_ids'",
        "RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 1",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0193.tar'",
    )
    if chance.random() < 0.15:
        return [events.Exit(_rank(chance, job), STEP, chance.choice((1, 2, 17)))]
    return [events.Raise(_rank(chance, job), STEP, chance.choice(texts))]


def _missing(chance: random.Random, job: Scenario) -> list[Event]:
    rank, luck = _rank(chance, job), chance.random()
    if luck < 0.6:
        return [events.Hang(rank, STEP)]
    if luck < 0.75:
        return [events.Freeze(rank, STEP)]
    return [events.Exit(rank, STEP, 0)] if luck < 0.85 else [events.NeverJoins(rank)]


def _mismatch(chance: random.Random, job: Scenario) -> list[Event]:
    op = chance.choice(("ALLREDUCE", "ALLGATHER", "BROADCAST"))
    return [events.Mismatch(_rank(chance, job), STEP, op, 2048 if op == "ALLREDUCE" else 1 << 20)]


def _oom_text(chance: random.Random, job: Scenario) -> list[Event]:
    rank = _rank(chance, job)
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. "
        f"GPU {job.local(rank)} has a total capacity of 79.11 GiB of which 1.19 GiB is free. Including non-PyTorch "
        "memory, this process has 77.91 GiB memory in use."
    )
    return [events.Raise(rank, STEP, text, "cuda-oom")]


def _ib(chance: random.Random, job: Scenario) -> list[Event]:
    if chance.random() < 0.5:
        return [events.LinkDown(_host(chance, job), STEP)]
    return [events.PathBreaks(*_pair(chance, job), STEP)]


def _efa(chance: random.Random, job: Scenario) -> list[Event]:
    if chance.random() < 0.5:
        return [events.EfaSetup(_host(chance, job))]
    return [events.EfaError(*_pair(chance, job), STEP)]


#: Class → events that make it.
MAKERS: dict[str, Make] = {
    "collective-missing-rank": _missing,
    "collective-mismatch": _mismatch,
    "collective-hang-unattributed": lambda chance, job: [events.Stall(STEP)],
    "watchdog-stuck": lambda chance, job: [events.BlockWatchdog(_rank(chance, job), STEP)],
    "straggler": lambda chance, job: [
        events.Slow(_rank(chance, job), STEP, 20.0),
        *([events.Cancel(STEP + 10, "time")] if chance.random() < 0.5 else ()),
    ],
    "rank-exception": _exception,
    "cuda-oom": _oom_text,
    "host-oom": lambda chance, job: [events.HostOutOfMemory(_rank(chance, job), STEP)],
    "process-signal": lambda chance, job: [events.Crash(_rank(chance, job), STEP, chance.choice((11, 11, 7, 6, 9)))],
    "gpu-hw-ecc": _xid("gpu-hw-ecc"),
    "gpu-hw-lost": _xid("gpu-hw-lost"),
    "nvlink-fabric": _xid("nvlink-fabric"),
    "gpu-app-fault": _xid("gpu-app-fault"),
    "net-ib-transport": _ib,
    "net-ib-setup": lambda chance, job: [events.QueuePairFails(*_pair(chance, job))],
    "net-socket-connect": lambda chance, job: [events.CannotConnect(_host(chance, job))],
    "net-efa-ofi": _efa,
    "version-mismatch": lambda chance, job: [events.OtherVersion(_host(chance, job))],
    "resource-memlock": lambda chance, job: [events.LowMemlock(_host(chance, job))],
    "resource-shm": lambda chance, job: [events.ShmFull(_host(chance, job))],
    "rendezvous-store": lambda chance, job: [events.StoreFails(chance.choice(("port", "name", "connect")))],
    "slurm-node-fail": lambda chance, job: [events.NodeFails(_host(chance, job), STEP)],
    "slurm-launch": lambda chance, job: [events.LaunchFails(_host(chance, job))],
    "preempt-cancel": lambda chance, job: [
        events.Cancel(STEP, chance.choice(("cancel", "time", "preempt", "requeue")))
    ],
    "storage-stall": lambda chance, job: [events.StorageStalls(_host(chance, job), STEP)],
    "benign": lambda chance, job: [],
    "unknown": lambda chance, job: [events.ScriptFails(STEP)],
}
#: What a class can't do without. A lost peer whose own end was not written down (class net-peer-lost) comes with
#: missing records.
_NCCL: dict[str, Any] = {"backend": "nccl"}
_IB: dict[str, Any] = {"backend": "nccl", "network": "IB"}
_EFA: dict[str, Any] = {"backend": "nccl", "network": "AWS Libfabric"}
_WANTS: dict[str, dict[str, Any]] = {
    "watchdog-stuck": {**_NCCL, "torch": (2, 6)},
    "collective-hang-unattributed": _NCCL,
    **dict.fromkeys(("gpu-hw-ecc", "gpu-hw-lost", "nvlink-fabric", "gpu-app-fault", "cuda-oom"), _NCCL),
    **dict.fromkeys(("net-ib-transport", "net-ib-setup", "resource-memlock"), _IB),
    **dict.fromkeys(("net-socket-connect", "version-mismatch", "resource-shm"), _NCCL),
    "net-efa-ofi": _EFA,
    "benign": {"noise": True},
}


def tell(found: Sequence[tuple[str, Case]], ranks: int) -> int:
    """Prints the table, and last one line; 0 where the bars hold."""
    by_class: dict[str, list[Case]] = defaultdict(list)
    for name, one in found:
        by_class[name].append(one)
    print(tabulate([_row(name, cases) for name, cases in by_class.items()], headers=_HEADERS, disable_numparse=True))
    cases = [one for _, one in found]
    provable = [one for one in cases if one.truth.determinable]
    right = sum(one.culprit == "right" for one in provable)
    false = sum(one.culprit == "false" for one in cases)
    share = right / len(provable) if provable else 1.0
    holds = share >= RIGHT and false == FALSE
    print(
        f"{len(cases)} draws of {ranks} ranks; class right {sum(one.class_right for one in cases)}; "
        f"culprit right {right} of {len(provable)} provable ({100 * share:.1f} %, bar {100 * RIGHT:g} %); "
        f"false accusations {false} (bar {FALSE}); "
        f"{'holds' if holds else 'DOES NOT HOLD'}"
    )
    return 0 if holds else 1


_HEADERS = ("class", "draws", "class right", "provable", "right", "missed", "nobody", "right beyond", "FALSE")


def _row(name: str, cases: Sequence[Case]) -> tuple[object, ...]:
    counts = Counter(one.culprit for one in cases)
    provable = [one for one in cases if one.truth.determinable]
    right = sum(one.culprit == "right" for one in provable)
    beyond = counts["right"] - right
    told = (sum(one.class_right for one in cases), len(provable), right)
    return (name, len(cases), *told, counts["missed"], counts["nobody"], beyond, counts["false"])


if __name__ == "__main__":
    sys.exit(main())
