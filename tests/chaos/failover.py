"""Two controllers, one store in MariaDB: whoever works dies, stops or is frozen while jobs end, and the other goes on.

    python -m tests.chaos.failover [--seed N] [--rounds host,frozen,...]

*host*: the first controller's slurmctld and daemon die at once (SIGKILL), and come back later. *slurmctld*: its
slurmctld alone dies. *killed*, *stopped*: the daemon that works gets SIGKILL, SIGTERM. *frozen*: it gets SIGSTOP, and
wakes when the other has taken over. *database*: MariaDB, with the store, is away for longer than a term. *upgraded*:
both daemons are replaced by a version with another schema. Where slurmctld dies jobs run that end afterwards, and
nothing ended or was submitted for some seconds: what slurmctld has not written down by then it loses, with the jobs'
ids.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.away import BEFORE
from tests.chaos.invariants import Findings, Stored, check, has_comment, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.client import ClusterError
from tests.cluster.harness import BACKUP, CHECKOUT, Cluster
from tests.cluster.processes import wait_until

__all__ = ["ROUNDS", "play"]

FIRST = ""
INSIDE = ("fails", "fails on two nodes", "succeeds", "goes on after a failed step", "array of three, one fails")
#: slurmctld writes its state down five seconds after a change (SAVE_MAX_WAIT).
STATE_S = 8.0
LIMIT_S = 240.0


def works(cluster: Cluster) -> str | None:
    """The controller whose daemon has the lease: FIRST, BACKUP; None where it was given back or has run out."""
    for row in Stored(cluster).rows("select host, pid from lease where token <> '' and until > unix_timestamp()"):
        return BACKUP if row["host"] == BACKUP else FIRST
    return None


def other(on: str) -> str:
    return FIRST if on == BACKUP else BACKUP


def takes_over(cluster: Cluster, on: str) -> float:
    """Seconds until that controller's daemon has the lease."""
    began = time.monotonic()
    if not wait_until(lambda: works(cluster) == on, LIMIT_S, every=0.2):
        raise ClusterError(f"the daemon on {on or 'the first controller'} has not taken over in {LIMIT_S:g} s")
    return time.monotonic() - began


def newer(folder: Path) -> Sequence[str]:
    """This code, with one more version of the store's schema; the command that runs it."""
    shutil.copytree(CHECKOUT / "nccl_slurm", folder / "nccl_slurm")
    schema = folder / "nccl_slurm" / "history" / "schema.py"
    known = schema.read_text()
    changed = known.replace("_add_lease)\n", '_add_lease, lambda connection: connection.exec_driver_sql("SELECT 1"))\n')
    if changed == known:
        raise ClusterError(f"{schema} has no such migrations any more")
    schema.write_text(changed)
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); from nccl_slurm.cli.main import main; main()"
    return (sys.executable, "-c", start)


class Rounds:
    """``program`` is nccl-slurm, of the version that is installed. ``took``: seconds from each end of a daemon that
    worked to the next one's beginning."""

    def __init__(self, scene: Scene, stream: Stream) -> None:
        self.scene, self.cluster, self.stream = scene, scene.cluster, stream
        self.took: list[float] = []
        self.program: Sequence[str] = (sys.executable, "-c", "from nccl_slurm.cli.main import main; main()")

    def host(self) -> None:
        self._at_first()
        self._while_slurm_rests(self._kill_host)
        self.took.append(takes_over(self.cluster, BACKUP))
        self._until_all_have_ended()
        self.cluster.start_slurmctld()
        self._start(FIRST)

    def slurmctld(self) -> None:
        self._while_slurm_rests(self._kill_slurmctld)
        self._until_all_have_ended()
        self.cluster.start_slurmctld()

    def killed(self) -> None:
        on = self._working()
        self._submit()
        self.cluster.stop_daemon(signal.SIGKILL, on=on)
        self.took.append(takes_over(self.cluster, other(on)))
        self._start(on)

    def database(self) -> None:
        """It goes with the store for longer than a term: nobody works, and nobody has lost the lease afterwards."""
        self._working()
        self._submit()
        time.sleep(self.scene.rng.uniform(0.5, 6.0))
        self.cluster.stop_database()
        time.sleep(25.0)
        self.cluster.start_database()
        if not self.cluster.alive("slurmdbd"):
            self.cluster.start_slurmdbd()
        self._working()

    def stopped(self) -> None:
        on = self._working()
        self._submit()
        self.cluster.stop_daemon(on=on)
        self.took.append(takes_over(self.cluster, other(on)))
        self._start(on)

    def frozen(self) -> None:
        """It wakes in the midst of what it did, beside the one that works."""
        on = self._working()
        self._submit()
        time.sleep(self.scene.rng.uniform(0.5, 6.0))
        pid = self.cluster.daemon_pid(on) or 0
        os.kill(pid, signal.SIGSTOP)
        try:
            self.took.append(takes_over(self.cluster, other(on)))
            time.sleep(self.scene.rng.uniform(0.0, 5.0))
        finally:
            os.kill(pid, signal.SIGCONT)

    def upgraded(self) -> None:
        """To a version with another schema, the stand-by first: it leaves the store alone while the older one works."""
        on = self._working()
        self._submit()
        self.cluster.stop_daemon(on=other(on))
        self.program = newer(self.cluster.scratch / "run" / "newer")
        self.cluster.start_daemon(on=other(on), program=self.program, wait_ready=False)
        if not wait_until(lambda: not self.cluster.daemon_alive(other(on)), LIMIT_S):
            raise ClusterError("a newer daemon works beside an older one")
        if "is of an older nccl-slurm; stop it" not in self.cluster.tail(f"nccl-slurm.{other(on)}".rstrip(".")):
            raise ClusterError("a newer daemon ended and did not say why")
        self.cluster.stop_daemon(on=on)
        self._start(other(on))
        takes_over(self.cluster, other(on))
        self._start(on)

    def _start(self, on: str) -> None:
        self.cluster.start_daemon(on=on, program=self.program, timeout=60.0)

    def _working(self) -> str:
        end = time.monotonic() + LIMIT_S
        while (found := works(self.cluster)) is None:
            if time.monotonic() > end:
                raise ClusterError("no daemon has the lease")
            time.sleep(0.2)
        return found

    def _at_first(self) -> None:
        """The first controller's daemon works: the other one is stopped for a moment."""
        if self._working() == BACKUP:
            self.cluster.stop_daemon(on=BACKUP)
            takes_over(self.cluster, FIRST)
            self._start(BACKUP)

    def _submit(self) -> None:
        for kind in ("fails at once", *INSIDE):
            self.stream.submit(kind, 1 + self.scene.rng.randrange(12))

    def _while_slurm_rests(self, kill: Callable[[], object]) -> None:
        """Some have ended and have their comment; the others run, and end afterwards."""
        before = [self.stream.submit(kind, 1) for kind in BEFORE]
        if not wait_until(lambda: all(has_comment(self.cluster, job) for job in before), LIMIT_S, every=1.0):
            raise ClusterError(f"jobs {before} have no comment")
        inside = [self.stream.submit(kind, 40 + self.scene.rng.randrange(10)) for kind in INSIDE]
        for job in inside:
            self.cluster.wait_job(job, {"RUNNING", "COMPLETED", "FAILED"})
        time.sleep(STATE_S)
        kill()

    def _kill_host(self) -> None:
        self.cluster.stop_daemon(signal.SIGKILL)
        self._kill_slurmctld()

    def _kill_slurmctld(self) -> None:
        self.cluster.stop_slurmctld(number=signal.SIGKILL)

    def _until_all_have_ended(self) -> None:
        """By the other slurmctld, which rests too before the first one takes the control back."""
        self.stream.join(300.0)
        time.sleep(STATE_S)


ROUNDS = ("host", "frozen", "killed", "slurmctld", "database", "stopped", "upgraded", "frozen")


def play(scene: Scene, rounds: Sequence[str] = ROUNDS, *, verified: bool = True) -> Findings:
    cluster, stream = scene.cluster, Stream(scene.cluster, scene.rng)
    made = Rounds(scene, stream)
    # The first writes state/assoc_usage every five minutes, and at its end; without that file 26.05's backup gives up.
    cluster.restart_slurmctld()
    cluster.start_daemon()
    cluster.start_daemon(on=BACKUP)
    for name in rounds:
        before = len(made.took)
        getattr(made, name)()
        took = "".join(f"; the other worked {seconds:.0f} s later" for seconds in made.took[before:])
        scene.say(f"{name}: {len(stream.comments)} jobs submitted{took}")
    stream.join(300.0)
    scene.say("the last job has ended")
    settled = wait_settled(cluster, 300.0, waiting=("queued", "written") if verified else ("queued",))
    found = check(cluster, stream.comments)
    found.need(settled, "the daemons have not come to rest")
    for on in (FIRST, BACKUP):
        found.need(cluster.daemon_alive(on), f"the daemon on {on or 'the first controller'} has ended")
    told = json.loads(cluster.run([*made.program, "status", "--json"]).stdout)
    hosts = {told["lease"] and told["lease"]["host"], *(one["host"] for one in told["standbys"])}
    found.need(hosts == {socket.gethostname(), BACKUP}, f"status tells of {hosts}")
    longest = round(max(made.took, default=0.0))
    found.counts = {"submitted": len(stream.comments), "rounds": len(rounds), **found.counts}
    found.counts["s at most until the other worked"] = longest
    return found


def main() -> int:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rounds", default=",".join(ROUNDS))

    def chosen(scene: Scene, arguments: argparse.Namespace) -> Findings:
        return play(scene, arguments.rounds.split(","))

    return command("failover", __doc__, chosen, options, cpus=16, backup=True)


if __name__ == "__main__":
    raise SystemExit(main())
