"""The demo: a private Slurm with nccl-slurm on it, a real job that hangs, and what its comment and report say then.

``python -m tests.cluster.demo [--keep]``; ``--stop`` takes a kept one down. install.sh --demo calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import jobs, scratch
from tests.cluster.harness import CHECKOUT, Cluster, ClusterError
from tests.cluster.harness import NODES as NODE_ADDRESSES
from tests.cluster.job_python import torch_of_jobs

__all__ = ["main"]

SCRATCH = Path(os.environ.get("NCCL_SLURM_DEMO_SCRATCH", "/var/tmp/nccl-slurm-demo")).absolute()
NODES, RANKS_A_NODE = 2, 2  # importing torch takes a core 3 s a rank
CULPRIT = 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the daemon running")
    parser.add_argument("--stop", action="store_true", help="take down what --keep left running")
    program = parser.add_mutually_exclusive_group()
    program.add_argument("--with-torch", action="store_true", help="fail where torch can't be imported")
    program.add_argument("--without-torch", action="store_true", help="the plain Python job even where torch is there")
    chosen = parser.parse_args(argv)
    cluster = Cluster(SCRATCH, gpus=RANKS_A_NODE)
    try:
        if chosen.stop:
            made = Made.kept(cluster)
            cluster.stop()
            made.take_back()
            say(f"nothing of the demo in {SCRATCH} runs any more")
        else:
            torch = None if chosen.without_torch else torch_of_jobs(Path(sys.executable))
            if chosen.with_torch and torch is None:
                raise ClusterError("torch is not installed; ./install.sh --demo --with-torch installs it")
            demonstrate(cluster, torch, keep=chosen.keep)
    except ClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output is gone; all has been taken down
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def demonstrate(cluster: Cluster, torch: str | None, *, keep: bool) -> None:
    """``torch`` is its version, None for the job without it."""
    with running(cluster, keep=keep):
        job = submit(cluster, torch)
        say(f"job {job} of alice: {NODES * RANKS_A_NODE} ranks on {NODES} nodes")
        state = cluster.wait_job(job, timeout=180)
        ended = time.monotonic()
        say(f"job {job} ended: {state}; nobody does anything now")
        cluster.wait_comment(job, timeout=90)
        say(f"comment written {time.monotonic() - ended:.1f} s after the job's end")
        show(cluster, job)
        if keep:
            tell_how(cluster, job)


@dataclass(frozen=True)
class Made:
    """What the demo adds to the machine outside its folder: users, and lines of /etc/hosts."""

    users: list[str]
    hosts: list[str]

    def __str__(self) -> str:
        parts = [f"users {', '.join(self.users)}"] if self.users else []
        parts += [f"names {', '.join(line.split()[1] for line in self.hosts)} in /etc/hosts"] if self.hosts else []
        return f"{' and '.join(parts)}, taken away with it" if parts else "nothing outside its folder"

    @classmethod
    def absent(cls) -> Made:
        return cls(scratch.absent_users(), scratch.absent_hosts(NODE_ADDRESSES))

    @classmethod
    def kept(cls, cluster: Cluster) -> Made:
        """As an earlier process has noted it."""
        try:
            return cls(**json.loads(_note(cluster).read_text()))
        except (OSError, ValueError, TypeError):
            return cls([], [])

    def keep(self, cluster: Cluster) -> None:
        _note(cluster).write_text(json.dumps({"users": self.users, "hosts": self.hosts}))

    def take_back(self) -> None:
        scratch.take_back(self.users, self.hosts)


def _note(cluster: Cluster) -> Path:
    return cluster.scratch / "run" / "made.json"


@contextmanager
def running(cluster: Cluster, *, keep: bool) -> Iterator[None]:
    """Cluster, hooks and daemon; taken down at the end, but not where ``keep`` and no error."""
    done = False
    made = Made.absent()
    if cluster.scratch.exists() and (cluster.scratch / "etc").exists():
        say("what an earlier demo left running (--keep) is taken down first")
        made = Made.kept(cluster)
    say(f"for the demo only: {made}")
    say(f"starting munge, MariaDB, slurmdbd, slurmctld and {len(cluster.nodes)} slurmd in {cluster.scratch}")
    cluster.start()
    made.keep(cluster)
    cluster.write_daemon_config(f"{cluster.daemon_config.read_text()}\n{programs_of(cluster)}")
    try:
        cluster.start_daemon()
        say("nccl-slurm's hooks are in slurm.conf, its daemon runs")
        yield
        done = True
    finally:
        if not (keep and done):
            cluster.stop()
            made.take_back()
            say(f"all taken down; logs stay in {cluster.log}")


def programs_of(cluster: Cluster) -> str:
    """Settings that an installed node needs none of: `watch`, `probe` and the doctor start its part in a step."""
    program = cluster.scratch / "prefix" / "slurm" / "nccl-slurm-node"
    return f'[live]\nreader = "{program}"\n\n[ssh]\ncommand = "{program}"\n'


def submit(cluster: Cluster, torch: str | None) -> str:
    """A job whose rank `CULPRIT` never enters a collective."""
    python = cluster.job_python()
    size = [f"-N{NODES}", f"--gpus-per-node={RANKS_A_NODE}", "--comment=team-a run 7"]
    if torch:
        say(f"torchrun with torch {torch} and gloo: rank {CULPRIT} stops before a collective")
        options = ("--mode=sleep", f"--rank={CULPRIT}", "--timeout=8", "--dump-after=4")
        script = jobs.torchrun(python, cluster.programs, *options, per_node=RANKS_A_NODE)
        return cluster.sbatch(script, *size, "--ntasks-per-node=1")
    say(f"no torch (--with-torch installs it): a TCP ring of Python processes, rank {CULPRIT} stops taking part")
    script = jobs.plain(python, cluster.programs, "--mode=hang", f"--rank={CULPRIT}", "--timeout=8")
    return cluster.sbatch(script, *size, f"--ntasks-per-node={RANKS_A_NODE}")


def show(cluster: Cluster, job: str) -> None:
    for command in (
        ["sacct", "-X", "-j", job, "-P", "-o", "jobid,state,exitcode,nodelist"],
        ["sacct", "-X", "-j", job, "-n", "-P", "-o", "comment"],
    ):
        print(f"\n$ {shlex.join(command)}\n{cluster.run(command).stdout.rstrip()}", flush=True)
    print(f"\n$ nccl-slurm report {job}\n{cluster.nccl_slurm('report', job).stdout.rstrip()}\n", flush=True)


def tell_how(cluster: Cluster, job: str) -> None:
    bin_folder = Path(sys.executable).parent
    print(
        f"""\
Still running. To look around, in a root shell:
  export SLURM_CONF={cluster.conf} NCCL_SLURM_CONFIG={cluster.daemon_config}
  sinfo; sacct -X -o jobid,state,comment%120
  {bin_folder}/nccl-slurm report {job} --ranks
  {bin_folder}/nccl-slurm doctor --job {job}
The nodes pretend to have GPUs and lie on loopback: the doctor says truly that the GPUs are not there.
To stop it:
  cd {CHECKOUT} && NCCL_SLURM_DEMO_SCRATCH={SCRATCH} {sys.executable} -m tests.cluster.demo --stop""",
        flush=True,
    )


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
