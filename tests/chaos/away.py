"""slurmdbd, MariaDB, slurmctld and munge are away while jobs end: one after another, then all at once.

    python -m tests.chaos.away [--seed N] [--only slurmdbd,mariadb,slurmctld,munge,all] [--seconds 60]

Jobs are submitted before; some end, with their comment written, just before the time away, most end in it, some begin
in it. A daemon of Slurm that ended by itself meanwhile is started again, as systemd would.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from tests.chaos.invariants import Findings, check, has_comment, runs_of_slurm, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["OUTAGES", "play"]

OUTAGES = {
    "slurmdbd": ("slurmdbd",),
    "mariadb": ("mariadbd",),
    "slurmctld": ("slurmctld",),
    "munge": ("munged",),
    "all": ("slurmctld", "slurmdbd", "mariadbd", "munged"),
}
BEFORE = ("fails at once", "requeued, then fails")
INSIDE = (
    "fails",
    "fails on two nodes",
    "succeeds",
    "goes on after a failed step",
    "cancelled",
    "array of three, one fails",
)


def stop(cluster: Cluster, name: str) -> None:
    stops: dict[str, Callable[[], None]] = {
        "slurmctld": cluster.stop_slurmctld,
        "slurmdbd": cluster.stop_slurmdbd,
        "mariadbd": cluster.stop_database,
        "munged": cluster.stop_munged,
    }
    stops[name]()


def start_all(cluster: Cluster) -> list[str]:
    """Those that do not run, in the order in which they need each other."""
    starts: dict[str, Callable[[], None]] = {
        "munged": cluster.start_munged,
        "mariadbd": cluster.start_database,
        "slurmdbd": cluster.start_slurmdbd,
        "slurmctld": cluster.start_slurmctld,
    }
    dead = [name for name in starts if not cluster.alive(name)]
    for name in dead:
        starts[name]()
    return dead


def outage(scene: Scene, stream: Stream, name: str, seconds: float) -> None:
    cluster, rng = scene.cluster, scene.rng
    before = [stream.submit(kind, 1) for kind in BEFORE]
    if not wait_until(lambda: has_comment(cluster, before[0]), 240.0, every=1.0):  # duties that failed pause a minute
        raise ClusterError(f"job {before[0]} has no comment")
    inside = [stream.submit(kind, 4 + rng.randrange(int(seconds))) for kind in INSIDE]
    cluster.wait_job(inside[0], {"RUNNING"})
    time.sleep(2.0)
    for part in OUTAGES[name]:
        stop(cluster, part)
    scene.say(f"{name} is away, {len(stream.comments)} jobs submitted")
    began = time.monotonic()
    if "slurmctld" not in OUTAGES[name] and name != "munge":
        stream.submit("fails", 3)
    time.sleep(max(seconds - (time.monotonic() - began), 0.0))
    scene.say(f"started: {', '.join(start_all(cluster))}")


def play(
    scene: Scene, names: Sequence[str] = tuple(OUTAGES), seconds: float = 60.0, *, verified: bool = True
) -> Findings:
    cluster = scene.cluster
    stream = Stream(cluster, scene.rng)
    cluster.start_daemon()
    for name in names:
        outage(scene, stream, name, seconds)
    stream.join(300.0)
    scene.say("the last job has ended")
    settled = wait_settled(cluster, 300.0, waiting=("queued", "written") if verified else ("queued",))
    # Slurm runs no epilog for a run that it gave up with its node
    lacking = {run.id.partition("_")[0] for run in runs_of_slurm(cluster) if run.state == "NODE_FAIL"}
    found = check(cluster, stream.comments, lacking=lacking)
    found.need(settled, "the daemon has not come to rest")
    found.need(cluster.alive("nccl-slurm"), "the daemon has ended")
    found.counts = {"submitted": len(stream.comments), "outages": len(names), **found.counts}
    return found


def main() -> int:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", default=",".join(OUTAGES))
        parser.add_argument("--seconds", type=float, default=60.0)

    def chosen(scene: Scene, arguments: argparse.Namespace) -> Findings:
        return play(scene, arguments.only.split(","), arguments.seconds)

    return command("away", __doc__, chosen, options)


if __name__ == "__main__":
    raise SystemExit(main())
