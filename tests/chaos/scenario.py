"""What all scenarios share: the command line, a cluster of their own, the last line and the exit status."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.invariants import Findings
from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.releases import SUITES

__all__ = ["SLURM", "Scene", "command", "no_options", "opened"]

#: Slurm forgets an ended job after half a minute, so that the last look at a comment is not five minutes away.
SLURM = ("MinJobAge=30",)


class Scene:
    """One scenario on a running cluster: ``rng`` is its chance, ``say`` tells a person what happens."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.rng = random.Random(seed)
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextmanager
def opened(
    folder: Path,
    seed: int,
    *,
    cpus: int = 8,
    extra: Sequence[str] = SLURM,
    backup: bool = False,
    release: str | None = None,
) -> Iterator[Scene]:
    """A cluster whose nccl-slurm.toml looks at all jobs; the daemon is not started."""
    with Cluster(folder, cpus=cpus, extra=extra, backup=backup, release=release) as cluster:
        for path in cluster.daemon_config.parent.glob("nccl-slurm*.toml"):
            path.write_text(path.read_text() + '\n[scope]\ndefault = "all"\n')
        yield Scene(cluster, seed)


def no_options(parser: argparse.ArgumentParser) -> None:
    """A scenario that needs none but those that all have."""


def command(
    name: str,
    doc: str | None,
    play: Callable[[Scene, argparse.Namespace], Findings],
    options: Callable[[argparse.ArgumentParser], None] = no_options,
    *,
    cpus: int = 8,
    extra: Sequence[str] = SLURM,
    backup: bool = False,
) -> int:
    """Runs the scenario as ``python -m tests.chaos.NAME``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.chaos.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options(parser)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--scratch", type=Path, default=Path(f"/var/tmp/nccl-slurm-chaos-{name}"))
    parser.add_argument("--release", choices=sorted(SUITES), help="a Slurm that is not the machine's own")
    chosen = parser.parse_args()
    more = {"cpus": cpus, "extra": extra, "backup": backup, "release": chosen.release}
    try:
        with opened(chosen.scratch.absolute(), chosen.seed, **more) as scene:
            found = play(scene, chosen)
    except ClusterError as error:
        print(f"{name}: seed {chosen.seed}: {error}", file=sys.stderr)
        return 2
    for line in found.broken:
        print(f"broken: {line}")
    print(f"{name}: seed {chosen.seed}: {found.line()}")
    return 1 if found.broken else 0
