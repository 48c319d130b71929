"""Machines crash: the controller's disk goes back to an earlier moment, and so does a node's.

    python -m tests.chaos.crash [--seed N]

The daemon is stopped by SIGSTOP at a random moment, and its store (SQLite with -wal and -shm) and SHARED/new are
copied. Two ways to go on. *power*: it is killed there, and a new one starts from the copy. *older*: it works for some
seconds more (reports, comments in Slurm, records taken in), is killed, and the copy takes the store's place, as where a
backup is restored; then nodes ship again what they delivered since (docs/nothing-lost.md has the command). Not
simulated: a disk that lost what fsync had promised, and one that wrote the later of two writes and not the earlier.

A node's spool is copied while its hooks run, the node loses its power, and boots with the copy: its boot unit and timer
find runs open, records half-made, and others delivered but not noted as such.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from tests.chaos.invariants import Findings, check, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["play"]

CRASHES, NODE_CRASHES, JOBS = 12, 2, 30
NODE = "n4"


class Image:
    """Store and SHARED/new as they were at one moment, while the daemon stood still."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._folder = cluster, cluster.scratch / "run" / "image"
        self.at = time.time()
        pid = cluster.daemon_pid() or 0
        os.kill(pid, signal.SIGSTOP)
        try:
            shutil.copytree(cluster.scratch / "daemon", self._folder / "daemon")
            shutil.copytree(cluster.shared / "new", self._folder / "new")
        finally:
            os.kill(pid, signal.SIGCONT)

    def restore(self) -> None:
        daemon = self._cluster.scratch / "daemon"
        shutil.rmtree(daemon)
        shutil.copytree(self._folder / "daemon", daemon)
        for path in (self._folder / "new").iterdir():
            shutil.copy2(path, self._cluster.shared / "new" / path.name)
        shutil.rmtree(self._folder)


def crash(scene: Scene) -> str:
    cluster, rng = scene.cluster, scene.rng
    way = rng.choice(["power", "older"])
    time.sleep(rng.uniform(1.0, 5.0))
    image = Image(cluster)
    if way == "older":
        time.sleep(rng.uniform(0.2, 8.0))
    cluster.stop_daemon(signal.SIGKILL)
    image.restore()
    cluster.start_daemon(wait_ready=False)
    if way == "older":
        ship_again(cluster, image.at)
    return way


def ship_again(cluster: Cluster, since: float) -> None:
    """What an admin does after an older store was restored: the nodes still hold their records."""
    for node in cluster.nodes:
        for mark in (cluster.spool / node).glob("*/root/delivered"):
            if mark.stat().st_mtime >= since - 1.0:
                mark.unlink()
        cluster.node_side(node, "sweep")


def crash_node(scene: Scene, stream: Stream) -> None:
    """While a job runs there and others have just ended."""
    cluster, rng = scene.cluster, scene.rng
    spool, copy = cluster.spool / NODE, cluster.scratch / "run" / "spool"
    here = ("-w", NODE, "--no-requeue")
    running = stream.submit("fails", 300, *here)
    ended = [stream.submit("fails at once", 0, *here) for _ in range(3)]
    cluster.wait_job(running, {"RUNNING"})
    cluster.wait_job(ended[0])
    time.sleep(rng.uniform(0.0, 1.5))
    _copied(spool, copy)
    time.sleep(rng.uniform(0.0, 2.0))
    cluster.power_off(NODE)
    shutil.rmtree(spool)
    shutil.copytree(copy, spool, symlinks=True)
    spool.chmod(0o711)
    shutil.rmtree(copy)
    boots(cluster)


def _copied(spool: Path, copy: Path) -> None:
    """As a crash leaves it: what goes while the others are copied (links of runs that end) is not there."""
    try:
        shutil.copytree(spool, copy, symlinks=True)
    except shutil.Error as error:
        lost = [source for source, _, _ in error.args[0] if os.path.lexists(source)]
        if lost:
            raise


def boots(cluster: Cluster) -> None:
    """And the timer fires when the workers that died have had their time."""
    cluster.boot(NODE)
    cluster.node_side(NODE, "boot")
    for closed in (cluster.spool / NODE).glob("*/closed"):
        os.utime(closed, (time.time() - 600, time.time() - 600))
    cluster.node_side(NODE, "sweep")
    if not wait_until(lambda: is_back(cluster), 90.0, every=1.0):
        raise ClusterError(f"{NODE} does not come back: {cluster.node_state(NODE)}")


def is_back(cluster: Cluster) -> bool:
    """Slurm keeps a node down that was booted under a job, until somebody resumes it."""
    if cluster.node_state(NODE) in ("IDLE", "MIXED", "ALLOCATED"):
        return True
    cluster.slurm("scontrol", "update", f"nodename={NODE}", "state=resume", check=False)
    return False


def play(
    scene: Scene, crashes: int = CRASHES, nodes: int = NODE_CRASHES, jobs: int = JOBS, *, verified: bool = True
) -> Findings:
    cluster, ways = scene.cluster, Counter[str]()
    stream = Stream(cluster, scene.rng, pause_s=crashes * 8.0 / jobs)
    cluster.start_daemon()
    stream.start(jobs)
    for _ in range(crashes):
        way = crash(scene)
        ways[way] += 1
        scene.say(f"controller crashed ({way}), {len(stream.comments)} jobs submitted")
    stream.join(240.0)
    for number in range(nodes):
        crash_node(scene, stream)
        scene.say(f"{NODE} crashed, {number + 1} of {nodes}")
    stream.join(240.0)
    settled = wait_settled(cluster, 240.0, waiting=("queued", "written") if verified else ("queued",))
    found = check(cluster, stream.comments)
    found.need(settled, "the daemon has not come to rest")
    crashed = {f"crashes ({way})": count for way, count in sorted(ways.items())} | {"node crashes": nodes}
    found.counts = {"submitted": len(stream.comments), **crashed, **found.counts}
    return found


if __name__ == "__main__":
    raise SystemExit(command("crash", __doc__, lambda scene, _: play(scene)))
