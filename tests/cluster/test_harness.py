"""The test cluster does what tests rely on: four named nodes, real accounting, real failures, nothing left behind."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import jobs
from tests.cluster.harness import CHECKOUT, Cluster, ClusterError
from tests.cluster.job_python import torch_of_jobs
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end


def test_four_nodes_with_names_of_their_own(idle_cluster: Cluster) -> None:
    done = idle_cluster.slurm("srun", "-N4", "hostname", user="alice")
    assert sorted(done.stdout.split()) == ["n1", "n2", "n3", "n4"]


def test_jobs_run_as_ordinary_users(idle_cluster: Cluster) -> None:
    for name in ("alice", "bob"):
        done = idle_cluster.slurm("srun", "id", "-u", user=name)
        assert int(done.stdout) == pwd.getpwnam(name).pw_uid


def test_a_failed_job_with_its_comment_is_in_accounting(idle_cluster: Cluster) -> None:
    job = idle_cluster.sbatch("#!/bin/sh\necho hello\nsrun sh -c 'exit 5'\nexit 7\n", "--comment=my own")
    assert idle_cluster.wait_job(job) == "FAILED"
    wait_until(lambda: idle_cluster.sacct(job, "end")[0]["end"] != "Unknown", 10)
    assert idle_cluster.sacct(job, "State,ExitCode,DerivedExitCode") == [
        {"state": "FAILED", "exitcode": "7:0", "derivedexitcode": "5:0"}
    ]
    assert [row["jobid"] for row in idle_cluster.sacct(job, "jobid", steps=True)] == [job, f"{job}.batch", f"{job}.0"]
    assert idle_cluster.comment(job) == "my own"
    assert idle_cluster.output(job).startswith("hello\n")


def test_waiting_gives_up_with_a_word(idle_cluster: Cluster) -> None:
    job = idle_cluster.sbatch("#!/bin/sh\nsleep 60\n")
    with pytest.raises(ClusterError, match=f"job {job} is (RUNNING|PENDING) after 1 s"):
        idle_cluster.wait_job(job, timeout=1)
    with pytest.raises(ClusterError, match="scontrol show job 999999 ended with 1"):
        idle_cluster.slurm("scontrol", "show", "job", "999999")


def test_hooks_of_the_checkout_run_on_every_node(idle_cluster: Cluster) -> None:
    if not list((CHECKOUT / "slurm" / "prolog.d").glob("*")):
        pytest.skip("the checkout has no hooks")
    job = idle_cluster.sbatch("#!/bin/sh\nsrun true\n", "-N4")
    assert idle_cluster.wait_job(job) == "COMPLETED"
    idle_cluster.wait_idle()
    for node in idle_cluster.nodes:
        assert len(list((idle_cluster.spool / node).glob(f"{job}.*/root/prolog.env"))) == 1
        assert len(list((idle_cluster.spool / node).glob(f"{job}.*/root/epilog.env"))) == 1
    assert (idle_cluster.events / "new" / f"{job}.0").exists()


def test_a_ring_that_hangs_on_one_rank(idle_cluster: Cluster) -> None:
    script = jobs.plain(Path("/usr/bin/python3"), idle_cluster.programs, "--mode=hang", "--rank=2", "--timeout=3")
    job = idle_cluster.sbatch(script, "-N2", "--ntasks-per-node=2")
    assert idle_cluster.wait_job(job) == "FAILED"
    output = idle_cluster.output(job)
    assert "[rank3]: TimeoutError: Timed out waiting 3000ms for recv operation to complete (from rank 2)" in output
    assert "[rank 2] step 2 of 6" in output
    assert "[rank 2] step 3 of 6" not in output
    assert "[rank2]: " not in output
    assert "task 2: Killed" in output


@pytest.mark.parametrize(("mode", "state"), [("good", "COMPLETED"), ("kill", "FAILED"), ("raise", "FAILED")])
def test_a_ring_that_ends_by_itself(idle_cluster: Cluster, mode: str, state: str) -> None:
    script = jobs.plain(Path("/usr/bin/python3"), idle_cluster.programs, f"--mode={mode}", "--rank=1")
    job = idle_cluster.sbatch(script, "-N2", "--ntasks-per-node=2")
    assert idle_cluster.wait_job(job) == state
    output = idle_cluster.output(job)
    assert ("[rank 0] step 5 of 6" in output) == (mode == "good")
    assert ("task 1: Killed" in output) == (mode == "kill")
    assert ("[rank1]: ValueError: loss is nan at step 3" in output) == (mode == "raise")


@pytest.mark.torch
def test_torchrun_over_two_nodes_with_a_rank_that_sleeps(idle_cluster: Cluster) -> None:
    python = idle_cluster.job_python()
    if torch_of_jobs(python) is None:
        pytest.skip("torch is not installed")
    script = jobs.torchrun(python, idle_cluster.programs, "--mode=sleep", "--timeout=5")
    job = idle_cluster.sbatch(script, "-N2", "--ntasks-per-node=1")
    assert idle_cluster.wait_job(job, timeout=120) == "FAILED"
    output = idle_cluster.output(job)
    assert "[rank 3] step 2 of 6\n" in output
    assert "[rank3]: RuntimeError: " in output
    assert "Timed out waiting 5000ms" in output
    assert "[rank1]: " not in output


def test_a_dead_slurmd_makes_its_node_down_and_heal_brings_it_back(idle_cluster: Cluster) -> None:
    idle_cluster.kill_slurmd("n4")
    assert not idle_cluster.alive("slurmd.n4")
    assert wait_until(lambda: idle_cluster.node_state("n4").startswith("DOWN"), 60, every=0.5)
    idle_cluster.heal()
    assert idle_cluster.node_state("n4") == "IDLE"


def test_slurmdbd_and_slurmctld_come_back(idle_cluster: Cluster) -> None:
    idle_cluster.stop_slurmdbd()
    assert idle_cluster.slurm("sacctmgr", "-n", "show", "cluster", check=False).returncode != 0
    idle_cluster.restart_slurmctld()
    idle_cluster.start_slurmdbd()
    job = idle_cluster.sbatch("#!/bin/sh\ntrue\n")
    assert idle_cluster.wait_job(job) == "COMPLETED"


def test_a_second_start_clears_what_a_crashed_run_left(cluster: Cluster) -> None:
    folder = cluster.scratch.with_name(f"crash-{os.getpid()}")
    crash = """
import os, sys
from pathlib import Path
from tests.cluster.harness import Cluster
cluster = Cluster(Path(sys.argv[1]), hooks=False, gpus=2, release=sys.argv[2] or None)
cluster.start()
job = cluster.sbatch("#!/bin/sh\\nsrun sleep 300\\n", "-N2", "--gpus-per-node=1")
cluster.wait_job(job, "RUNNING")
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", crash, str(folder), cluster.release or ""], cwd=CHECKOUT, timeout=60)
    assert done.returncode == 9
    again = Cluster(folder, hooks=False, release=cluster.release)
    assert again.alive("slurmctld")
    old = {
        name: (folder / "pid" / f"{name}.pid").read_text() for name in ("munged", "mariadbd", "slurmctld", "slurmd.n1")
    }
    with again:
        new = {name: (folder / "pid" / f"{name}.pid").read_text() for name in old}
        assert all(old[name] != new[name] for name in old)
    assert not again.alive("slurmctld")
    assert [path.name for path in folder.iterdir()] == ["log"]
    assert _users_of(folder) == []


def _users_of(folder: Path) -> list[str]:
    """Command lines of processes that name the folder or work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in command or os.readlink(process / "cwd").startswith(str(folder)):
                found.append(command)
        except OSError:
            continue
    return found
