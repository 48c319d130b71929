"""Ranks in real containers (bubblewrap: name spaces of their own for users, mounts, processes and the host's name)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import jobs
from tests.cluster.client import PATH
from tests.cluster.harness import NODES, Cluster
from tests.cluster.job_python import torch_of_jobs
from tests.cluster.outcome import Outcome, outcome
from tests.cluster.scratch import USERS

pytestmark = pytest.mark.torch

#: Root's file system read-only (/tmp too, the checkout may lie below it), and a name that Slurm does not know, another
#: one on each node. The network is the node's, as in enroot and Apptainer.
CONTAINER = """#!/bin/sh
exec bwrap --unshare-user --unshare-pid --unshare-uts --hostname "trainer-$SLURM_NODEID" --die-with-parent \\
    --ro-bind / / --dev /dev --proc /proc --setenv TMPDIR /dev/shm --ro-bind {hosts} /etc/hosts {mounts} "$@"
"""


@dataclass(frozen=True)
class Ran:
    found: Outcome
    output: str


def refused() -> str:
    """Why an ordinary user can have no container here."""
    words = [
        "bwrap",
        "--unshare-user",
        "--unshare-pid",
        "--unshare-uts",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "true",
    ]
    user = USERS["alice"]
    try:
        done = subprocess.run(words, env={"PATH": PATH}, capture_output=True, user=user, group=user, extra_groups=[])
    except FileNotFoundError:
        return "not installed"
    return done.stderr.decode(errors="replace").strip()


@pytest.fixture
def lab(idle_cluster: Cluster) -> Iterator[Cluster]:
    if why := refused():
        pytest.skip(f"bubblewrap: {why}")
    if torch_of_jobs(idle_cluster.job_python()) is None:
        pytest.skip("torch is not there; ./install.sh --test --with-torch brings it")
    if not idle_cluster.alive("nccl-slurm"):
        idle_cluster.start_daemon()
    yield idle_cluster


def hangs(lab: Cluster, mounts: str) -> Ran:
    """Rank 3 of 4 on two nodes sleeps; a node's agent and ranks are in one container."""
    hosts, program = lab.home / "hosts", lab.home / "container"
    own = [f"{NODES[node]} trainer-{number}" for number, node in enumerate(("n1", "n2"))]
    hosts.write_text("\n".join([*own, Path("/etc/hosts").read_text()]))
    program.write_text(CONTAINER.format(hosts=hosts, mounts=mounts))
    program.chmod(0o755)
    words = ("--mode=sleep", "--rank=3", "--timeout=8", "--dump-after=4")
    script = jobs.torchrun(lab.job_python(), lab.programs, *words, inside=str(program))
    job = lab.sbatch(script, "-N2", "--ntasks-per-node=1", "-w", "n1,n2")
    assert lab.wait_job(job, timeout=180) == "FAILED"
    found = outcome(lab, job)
    return Ran(found, lab.output(job))


def test_with_the_spool_in_it_the_node_is_named(lab: Cluster) -> None:
    """By the folder of its dumps: what its ranks print has the container's name."""
    ran = hangs(lab, f"--bind {lab.spool} {lab.spool}")
    assert ran.found.failure_class == "collective-missing-rank"
    assert ran.found.culprits == {(3, "n2")}
    assert "trainer-" not in ran.found.comment and "n2" in ran.found.comment


def test_without_the_spool_nothing_harms_the_job(lab: Cluster) -> None:
    ran = hangs(lab, f"--tmpfs {lab.spool}")
    assert ran.found.failure_class == "collective-missing-rank"
    assert ran.found.culprits == {(3, None)}, "its console has the rank; a container's name is no node's"
    assert "trainer-" not in ran.found.comment and "host      : trainer-1" in ran.output
