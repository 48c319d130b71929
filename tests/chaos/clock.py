"""The clock of the daemon's host is set forth and back, by seconds and by days, while jobs end.

    python -m tests.chaos.clock [--seed N]

Slurm, the nodes and their hooks keep the machine's time: what is set is the clock that the daemon's process reads, all
of it in `SystemClock`. At the end it is right again, as where NTP has come back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.chaos.invariants import Findings, check, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream

__all__ = ["play"]

JOBS = 24
STEPS_S = (3600.0, -3600.0, 5.0, -30.0, 2 * 86400.0, 0.0, -86400.0, 90.0, -7200.0)
#: Started in place of the command: the same, by a clock that goes as the file says.
PROGRAM = """
import sys, time
from nccl_slurm.clock import SystemClock
from nccl_slurm.cli.main import main
path = sys.argv[1]

def now(self):
    with open(path) as file:
        return time.time() + float(file.read())

SystemClock.now = now
main(sys.argv[2:])
"""


def play(
    scene: Scene, steps: Sequence[float] = STEPS_S, jobs: int = JOBS, pause_s: float = 9.0, *, verified: bool = True
) -> Findings:
    cluster, offset = scene.cluster, scene.cluster.scratch / "run" / "clock"

    def set_to(seconds: float) -> None:
        part = offset.with_suffix(".part")
        part.write_text(f"{seconds}\n")
        part.rename(offset)

    set_to(0.0)
    stream = Stream(cluster, scene.rng, pause_s=len(steps) * pause_s / jobs)
    cluster.start_daemon(program=(sys.executable, "-c", PROGRAM, str(offset)))
    stream.start(jobs)
    for seconds in scene.rng.sample(steps, len(steps)):
        time.sleep(scene.rng.uniform(0.5, 1.5) * pause_s)
        set_to(seconds)
        scene.say(f"the clock is {seconds:+.0f} s off, {len(stream.comments)} jobs submitted")
    time.sleep(pause_s)
    set_to(0.0)
    stream.join(240.0)
    scene.say("the clock is right, the last job has ended")
    settled = wait_settled(cluster, 300.0, waiting=("queued", "written") if verified else ("queued",))
    found = check(cluster, stream.comments)
    found.need(settled, "the daemon has not come to rest")
    found.need(cluster.daemon_alive(), "the daemon has ended")
    found.counts = {"submitted": len(stream.comments), "times set": len(steps) + 1, **found.counts}
    return found


if __name__ == "__main__":
    raise SystemExit(command("clock", __doc__, lambda scene, _: play(scene)))
