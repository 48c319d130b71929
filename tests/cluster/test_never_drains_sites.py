"""Sites on which our hooks must not drain a node either: slurm.conf's variants, other files in the hooks' folders.

Rows in which Slurm itself drains a node are here to be told in docs/never-drains.md, not because we could help it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

SHORT = "#!/bin/sh\nsrun true\n"


@pytest.fixture(scope="module")
def cluster(release: str | None) -> Iterator[Cluster]:
    """In place of the one that all tests share: Slurm is started again with other settings."""
    with mounts.private_mounts(), scratch_slot() as folder, Cluster(folder, release=release) as made:
        yield made


@pytest.fixture
def lab(cluster: Cluster) -> Iterator[Cluster]:
    """Hooks' folders and slurm.conf are put back, and all nodes are idle, whatever a test did."""
    folders = [cluster.scratch / "prefix" / "slurm" / name for name in ("prolog.d", "epilog.d")]
    conf, cgroup = cluster.conf.read_text(), (cluster.scratch / "etc" / "cgroup.conf").read_text()
    cluster.heal()
    yield cluster
    for folder in folders:
        for path in set(folder.iterdir()) - {folder / "50-nccl-slurm"}:
            path.unlink()
    if cluster.conf.read_text() != conf:
        (cluster.scratch / "etc" / "cgroup.conf").write_text(cgroup)
        restart_with(cluster, conf)
    cluster.heal()


def restart_with(cluster: Cluster, conf: str) -> None:
    for node in cluster.nodes:
        cluster.kill_slurmd(node)
    cluster.stop_slurmctld()
    cluster.conf.write_text(conf)
    cluster.start_slurmctld()
    for node in cluster.nodes:
        cluster.start_slurmd(node)
    cluster.wait_idle(60)


def configure(cluster: Cluster, **values: str) -> None:
    """Lines of slurm.conf in place of those with the same key."""
    kept = [line for line in cluster.conf.read_text().splitlines() if line.partition("=")[0] not in values]
    restart_with(cluster, "\n".join([*kept, *(f"{key}={value}" for key, value in values.items() if value), ""]))


def facts(cluster: Cluster, node: str) -> tuple[str, str | None]:
    shown = cluster.node(node)
    return shown["State"], shown.get("Reason")


def all_idle(cluster: Cluster) -> bool:
    return {facts(cluster, node) for node in cluster.nodes} == {("IDLE", None)}


def closed(cluster: Cluster, job: str) -> set[str]:
    """Nodes on which our epilog had the job."""
    return {node for node in cluster.nodes if list((cluster.spool / node).glob(f"{job}.*/root/epilog.env"))}


def opened(cluster: Cluster, job: str) -> set[str]:
    return {node for node in cluster.nodes if list((cluster.spool / node).glob(f"{job}.*/root/prolog.env"))}


def jobs_run(cluster: Cluster) -> dict[str, set[str]]:
    """Batch job on two nodes with a step on both, one whose step is on one node alone, salloc without a step."""
    jobs = {
        "step on both": cluster.sbatch("#!/bin/sh\nsrun true\n", "-w", "n1,n2"),
        "step on one": cluster.sbatch("#!/bin/sh\nsrun -N1 true\n", "-w", "n3,n4"),
    }
    told = cluster.slurm("salloc", "-w", "n1,n2", "true", user="alice").stderr
    jobs["salloc without a step"] = told.partition("Granted job allocation ")[2].split()[0]
    for job in jobs.values():
        assert cluster.wait_job(job, timeout=60) == "COMPLETED"
    assert wait_until(lambda: all_idle(cluster), 60, every=0.3)
    assert all(len(closed(cluster, job)) == 2 for job in jobs.values())
    return {what: opened(cluster, job) for what, job in jobs.items()}


@pytest.mark.parametrize("flags", ["", "Alloc", "Contain", "Serial", "Alloc,NoHold"])
def test_prolog_flags(lab: Cluster, flags: str) -> None:
    """An epilog runs on all nodes of a job in any case, a prolog by the flags: no run is left open."""
    configure(lab, PrologFlags=flags)
    began = jobs_run(lab)
    everywhere = {"step on both": {"n1", "n2"}, "step on one": {"n3", "n4"}, "salloc without a step": {"n1", "n2"}}
    if flags in ("", "Serial"):
        everywhere |= {"step on one": {"n3"}, "salloc without a step": set()}
    assert began == everywhere


def test_processes_tracked_by_cgroups(lab: Cluster) -> None:
    """The worker that an epilog leaves behind is not the job's: its cgroup is removed, the node is idle."""
    if not Path("/sys/fs/cgroup/freezer").is_dir():
        pytest.skip("no cgroup v1 freezer here")
    (lab.scratch / "etc" / "cgroup.conf").write_text("CgroupAutomount=no\n")
    configure(lab, ProctrackType="proctrack/cgroup", PrologFlags="Contain")
    others = set(Path("/sys/fs/cgroup/freezer").rglob("job_*"))  # of clusters that were killed
    began = jobs_run(lab)
    assert began["salloc without a step"] == {"n1", "n2"}
    now = set(Path("/sys/fs/cgroup/freezer").rglob("job_*")) - others
    left = [path for path in now if path.is_dir() and "slurm" in str(path)]
    assert wait_until(lambda: not any(path.exists() for path in left), 30)


@pytest.fixture
def slow_workers(lab: Cluster) -> Iterator[Cluster]:
    """Each would run for 20 s."""
    before, slow = lab.capture_conf.read_text(), lab.scratch / "jobs" / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    lab.capture_conf.write_text(f"{before}NCCL_SLURM_PYTHON={slow}\nNCCL_SLURM_WORKER_LIMIT_S=25\n")
    yield lab
    lab.capture_conf.write_text(before)


def test_time_limit_of_hooks_below_the_workers(slow_workers: Cluster) -> None:
    """PrologEpilogTimeout ends hooks; a worker is none of them."""
    lab = slow_workers
    configure(lab, PrologEpilogTimeout="8")
    job = lab.sbatch(SHORT, "-N4")
    assert lab.wait_job(job) == "COMPLETED"
    assert wait_until(lambda: all_idle(lab), 60, every=0.2) and len(closed(lab, job)) == 4
    time.sleep(9)
    assert all_idle(lab)


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
def test_time_limit_below_the_hooks_own_patience(lab: Cluster) -> None:
    """Hooks wait 5 s for a spool that hangs; at Slurm's 3 s they get SIGTERM, and end with 0."""
    configure(lab, PrologEpilogTimeout="3")
    with mounts.hung(lab.spool / "n1"):
        job = lab.sbatch(SHORT, "-w", "n1")
        assert lab.wait_job(job) == "COMPLETED"
        assert wait_until(lambda: all_idle(lab), 60, every=0.3)


def leave(lab: Cluster, folder: str, name: str, mode: int) -> None:
    ours = lab.scratch / "prefix" / "slurm" / folder / "50-nccl-slurm"
    shutil.copy(ours, ours.with_name(name))
    ours.with_name(name).chmod(mode)


@pytest.mark.parametrize("folder", ["prolog.d", "epilog.d"])
def test_what_editors_leave_beside_a_hook_is_harmless(lab: Cluster, folder: str) -> None:
    """Slurm runs what a shell's * matches: no hidden file. An executable copy of ours runs as well."""
    for name, mode in (("50-nccl-slurm~", 0o755), (".50-nccl-slurm.swp", 0o644), (".#50-nccl-slurm", 0o644)):
        leave(lab, folder, name, mode)
    job = lab.sbatch(SHORT, "-w", "n1")
    assert lab.wait_job(job) == "COMPLETED"
    assert wait_until(lambda: all_idle(lab), 60, every=0.3)
    assert (opened(lab, job), closed(lab, job)) == ({"n1"}, {"n1"})


@pytest.mark.parametrize("folder", ["prolog.d", "epilog.d"])
@pytest.mark.parametrize("name", ["50-nccl-slurm.bak", "#50-nccl-slurm#", "README"])
def test_a_file_beside_a_hook_that_can_not_be_run_drains(lab: Cluster, folder: str, name: str) -> None:
    leave(lab, folder, name, 0o644)
    lab.sbatch(SHORT, "-w", "n1")
    assert wait_until(lambda: "DRAIN" in facts(lab, "n1")[0], 60, every=0.3)
    assert facts(lab, "n1")[1] in ("Prolog", "Epilog")  # … error


@pytest.mark.parametrize("folder", ["prolog.d", "epilog.d"])
@pytest.mark.parametrize("name", ["40-site", "60-site"])
def test_a_sites_own_hook_that_fails_is_the_sites(lab: Cluster, folder: str, name: str) -> None:
    """Slurm drains as without us. It runs hooks from Z to A, and none after the one that failed: ours, 50, misses what
    a later name's failure ends."""
    site = lab.scratch / "prefix" / "slurm" / folder / name
    site.write_text("#!/bin/sh\nexit 1\n")
    site.chmod(0o755)
    job = lab.sbatch(SHORT, "-w", "n1")
    assert wait_until(lambda: "DRAIN" in facts(lab, "n1")[0], 60, every=0.3)
    ran = (opened if folder == "prolog.d" else closed)(lab, job)
    assert ran == ({"n1"} if name == "40-site" else set())
