"""The daemon is killed with SIGKILL again and again while jobs end, and started again at once.

    python -m tests.chaos.kill [--seed N]

Four kinds of moments, by turns at random: any; some milliseconds after a node record or an event arrived; right after
a report was published; and around the call that writes a comment: before it (the call is lost, or goes on without the
daemon) and after it (written, but not noted).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos.invariants import Findings, check, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["Killer", "play"]

KILLS, JOBS = 50, 30
#: The daemon is the parent of the command that it runs. ``mode`` is taken by one call alone.
SACCTMGR = """\
#!/bin/sh
case " $* " in *" modify "*) mv {mode} {mode}.$$ 2>/dev/null && mode=$(cat {mode}.$$) && rm {mode}.$$ ;; esac
case $mode in
lost) kill -9 $PPID; exit 1 ;;
orphan) kill -9 $PPID; sleep 1; exec /usr/bin/sacctmgr "$@" ;;
written) /usr/bin/sacctmgr "$@"; kill -9 $PPID; exit 0 ;;
*) exec /usr/bin/sacctmgr "$@" ;;
esac
"""
COMMANDS = ("scontrol", "squeue", "sacct")


class Killer:
    """``counts``: how often the daemon died at each kind of moment."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._cluster, self._rng = scene, scene.cluster, scene.rng
        self._mode = scene.cluster.scratch / "run" / "kill-mode"
        self.counts: Counter[str] = Counter()
        self._moments: dict[str, Callable[[], str]] = {
            "any moment": self._any,
            "new record": lambda: self._after_new(self._cluster.shared / "new"),
            "new event": lambda: self._after_new(self._cluster.events / "new"),
            "new report": lambda: self._after_new(self._cluster.shared / "reports", late_s=0.01),
            "comment call": self._around_comment,
        }

    def prepare(self) -> None:
        """Slurm's commands by a folder of our own, whose sacctmgr kills when told to."""
        folder = _commands(self._cluster, SACCTMGR.replace("{mode}", str(self._mode)))
        text = self._cluster.daemon_config.read_text()
        self._cluster.write_daemon_config(text.replace("[slurm]\n", f'[slurm]\nbin = "{folder}"\n'))

    def kill(self) -> None:
        """Once, and a new daemon right after."""
        moment = self._rng.choice(list(self._moments))
        how = self._moments[moment]()
        self._mode.unlink(missing_ok=True)
        self._cluster.stop_daemon(signal.SIGKILL)
        self.counts[how] += 1
        self._cluster.start_daemon(wait_ready=False)

    def _any(self) -> str:
        time.sleep(self._rng.uniform(0.3, 5.0))
        return "any moment"

    def _after_new(self, folder: Path, late_s: float = 0.08) -> str:
        """Some milliseconds after a name came into the folder; any moment where none comes."""
        late, before = self._rng.uniform(0, late_s), set(os.listdir(folder))
        if not wait_until(lambda: bool(set(os.listdir(folder)) - before), 6.0, every=0.002):
            return "any moment"
        time.sleep(late)
        return f"after a new {folder.parent.name}/{folder.name}"

    def _around_comment(self) -> str:
        mode = self._rng.choice(["lost", "orphan", "written"])
        part = self._mode.with_suffix(".part")
        part.write_text(mode)
        part.rename(self._mode)
        if wait_until(lambda: not self._cluster.alive("nccl-slurm"), 8.0, every=0.02):
            return f"comment {mode}"
        return "any moment"


def _commands(cluster: Cluster, sacctmgr: str) -> Path:
    folder = cluster.scratch / "run" / "bin"
    folder.mkdir(exist_ok=True)
    for name in COMMANDS:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(f"/usr/bin/{name}")
    (folder / "sacctmgr").write_text(sacctmgr)
    (folder / "sacctmgr").chmod(0o755)
    return folder


def play(scene: Scene, kills: int = KILLS, jobs: int = JOBS, *, verified: bool = True) -> Findings:
    cluster, killer = scene.cluster, Killer(scene)
    stream = Stream(cluster, scene.rng, pause_s=kills * 4.0 / jobs)
    killer.prepare()
    cluster.start_daemon()
    stream.start(jobs)
    for number in range(kills):
        killer.kill()
        if number % 10 == 9:
            scene.say(f"killed {number + 1} times, {len(stream.comments)} jobs submitted")
    stream.join(240.0)
    scene.say(f"the last job has ended; {dict(killer.counts)}")
    settled = wait_settled(cluster, 240.0, waiting=("queued", "written") if verified else ("queued",))
    found = check(cluster, stream.comments)
    found.need(settled, "the daemon has not come to rest")
    found.counts = {"submitted": len(stream.comments), "kills": killer.counts.total(), **found.counts}
    found.counts |= {f"kills: {how}": count for how, count in sorted(killer.counts.items())}
    return found


if __name__ == "__main__":
    raise SystemExit(command("kill", __doc__, lambda scene, _: play(scene)))
