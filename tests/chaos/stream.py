"""Jobs of all kinds, one after another, each with a comment of its own, while something else goes wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread

from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["KINDS", "Stream"]


@dataclass(frozen=True)
class Kind:
    """``script`` may hold ``{pause}``; ``then`` is the command of Slurm that follows once the job runs (or waits)."""

    script: str
    options: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    at: str = "RUNNING"


SLEEPS = "srun sleep 300\n"
REQUEUED = "if [ $SLURM_RESTART_COUNT ]; then srun sh -c 'exit {code}'; else srun sleep 300; fi\n"
KINDS = {
    "fails": Kind("srun sh -c 'sleep {pause}; exit 3'\n"),
    "fails on two nodes": Kind("srun sh -c 'sleep {pause}; [ $SLURM_PROCID != 1 ] || exit 7'\n", ("-N2",)),
    "fails at once": Kind("exit 1\n"),
    "goes on after a failed step": Kind("srun sh -c 'exit 5'\nsleep {pause}\n"),
    "succeeds": Kind("srun sleep {pause}\n"),
    "succeeds on two nodes": Kind("srun sleep {pause}\n", ("-N2",)),
    "cancelled": Kind(SLEEPS, ("-N2",), ("scancel",)),
    "cancelled before it ran": Kind(SLEEPS, ("--hold",), ("scancel",), "PENDING"),
    "requeued, then fails": Kind(REQUEUED.replace("{code}", "4"), (), ("scontrol", "requeue")),
    "requeued, then succeeds": Kind(REQUEUED.replace("{code}", "0"), (), ("scontrol", "requeue")),
    "array of three, one fails": Kind("srun sh -c '[ $SLURM_ARRAY_TASK_ID != 2 ]'\n", ("--array=1-3",)),
}
#: What users write: plain; what sacctmgr would change (capitals, quotes, other scripts); what looks like ours.
COMMENTS = (
    "run {n}",
    "Run {n} of Team A",
    'it\'s "mine" {n}',
    "a=b; c|d, $HOME {n} \\",
    "see [nccl-slurm: my notes {n}]",
    "größe {n}",
    "",
)


@dataclass
class Stream:
    """``comments`` holds what each job's user wrote, by the id that sbatch gave (an array's is that of all its tasks).

    ``pause_s``: the mean time between two jobs."""

    cluster: Cluster
    rng: random.Random
    pause_s: float = 2.0
    comments: dict[str, str] = field(default_factory=dict)
    _threads: list[Thread] = field(default_factory=list)

    def start(self, count: int, kinds: Sequence[str] = tuple(KINDS)) -> None:
        """``count`` jobs in a thread of their own, every kind at least once where there are so many."""
        rounds = [kind for _ in range(count // len(kinds) + 1) for kind in kinds][:count]
        self.rng.shuffle(rounds)
        pauses = [self.rng.uniform(0, 2 * self.pause_s) for _ in rounds]
        self._run(lambda: self._submit_all(rounds, pauses))

    def submit(self, kind: str, pause_s: int, *more: str) -> str:
        """Waits where slurmctld is away."""
        made = KINDS[kind]
        number = len(self.comments)
        comment = COMMENTS[number % len(COMMENTS)].format(n=number)
        script = "#!/bin/sh\n" + made.script.replace("{pause}", str(pause_s))
        options = [*made.options, *more, *([f"--comment={comment}"] if comment else [])]
        job = self._insist(lambda: self.cluster.sbatch(script, *options))
        self.comments[job] = comment
        if made.then:
            self._run(lambda: self._follow(job, made))
        return job

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float) -> None:
        """Until all is submitted and no job is left in the queue; what is left halfway is cancelled (a requeued job
        whose cancelling was its first run's sleeps on)."""
        wait_until(lambda: not self.busy, timeout_s, every=0.2)
        if not wait_until(self._queue_empty, timeout_s / 2, every=0.5):
            self.cluster.slurm("scancel", "--user=alice", check=False)
        if self.busy or not wait_until(self._queue_empty, timeout_s / 2, every=0.5):
            raise ClusterError(f"jobs are left: {self.cluster.slurm('squeue').stdout}")

    def _queue_empty(self) -> bool:
        shown = self.cluster.slurm("squeue", "-h", "-t", "PD,R,CG,S,CF", check=False)
        return shown.returncode == 0 and not shown.stdout.strip()

    def _submit_all(self, kinds: Sequence[str], pauses: Sequence[float]) -> None:
        for kind, pause in zip(kinds, pauses, strict=True):
            self.submit(kind, 1 + int(pause) % 4)
            time.sleep(pause)

    def _follow(self, job: str, kind: Kind) -> None:
        wait_until(lambda: self._state(job) == kind.at, 120.0, every=0.5)
        time.sleep(1.5)  # the step starts after the batch script
        self._insist(lambda: self.cluster.slurm(kind.then[0], *kind.then[1:], job).stdout)

    def _state(self, job: str) -> str:
        return self.cluster.slurm("squeue", "-h", "-j", job, "-o", "%T", check=False).stdout.strip()

    def _run(self, work: Callable[[], object]) -> None:
        thread = Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _insist(ask: Callable[[], str]) -> str:
        """What is away comes back: asked for two minutes."""
        for _ in range(60):
            try:
                return ask()
            except ClusterError:
                time.sleep(2.0)
        raise ClusterError("Slurm took no command for two minutes")
