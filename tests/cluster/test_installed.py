"""A cluster whose hooks are those that install.sh put there: jobs run on them, they are replaced under running jobs,
and they can't be taken away while slurm.conf names them."""

from __future__ import annotations

import json
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import NODES, Cluster
from tests.cluster.processes import wait_until
from tests.install.staging import Installer, copy_checkout, snapshot

pytestmark = pytest.mark.cluster
PLACES = ("prefix", "hooks", "conf", "spool", "shared")


@dataclass
class Lab:
    """All is installed below one root, and the paths that slurm.conf and capture.conf name are links into it."""

    home: Path
    install: Installer
    before: dict[str, tuple[object, ...]]
    cluster: Cluster

    @property
    def places(self) -> list[str]:
        return [word for name in PLACES for word in (f"--{name}", f"{self.home}/{name}")]

    def resolved(self, name: str) -> Path:
        return Path(f"{self.home}/root{self.home}/{name}")


@pytest.fixture(scope="module")
def lab(release: str | None) -> Iterator[Lab]:
    with scratch_slot() as folder:
        home = folder.parent / f"{folder.name}.installed"
        shutil.rmtree(home, ignore_errors=True)
        (home / "root").mkdir(parents=True)
        cluster = Cluster(folder, hooks=False, extra=hook_lines(home), release=release)
        lab = Lab(home, Installer(copy_checkout(home / "checkout"), home / "root"), {}, cluster)
        prepare(lab)
        try:
            with cluster:
                yield lab
        finally:
            shutil.rmtree(home, ignore_errors=True)


def hook_lines(home: Path) -> list[str]:
    return [
        f"Prolog={home}/hooks/prolog.d/*",
        f"Epilog={home}/hooks/epilog.d/*",
        f"TaskProlog={home}/hooks/task_prolog",
        f"EpilogSlurmctld={home}/hooks/epilog_slurmctld",
    ]


def prepare(lab: Lab) -> None:
    """As a controller's installation makes the folders of the hand-over; then the node's."""
    slurm = pwd.getpwnam("slurm")
    for name, mode in (("new", 0o700), ("tmp", 0o700), ("quarantine", 0o700), ("reports", 0o711)):
        (lab.resolved("shared") / name).mkdir(mode=mode, parents=True)
    for name in ("events", "events/new", "events/tmp"):
        (lab.resolved("") / name).mkdir(mode=0o700)
        shutil.chown(lab.resolved("") / name, slurm.pw_uid)
    for name in (*PLACES, "events"):
        (lab.home / name).symlink_to(lab.resolved(name))
    lab.before.update(snapshot(lab.install.root))
    lab.install("--node", *lab.places)
    conf = lab.resolved("conf") / "capture.conf"
    conf.write_text(conf.read_text().replace(f"{lab.home}/spool/events", f"{lab.home}/events"))


def states(cluster: Cluster) -> set[tuple[str, str]]:
    return {(cluster.node_state(name), cluster.node(name).get("Reason", "")) for name in NODES}


def records(cluster: Cluster, job: str) -> set[str]:
    report = json.loads(cluster.nccl_slurm("report", job, "--json").stdout)
    return {node["record"] for node in report["nodes"]}


def test_a_job_runs_on_installed_hooks_and_gets_its_comment(lab: Lab) -> None:
    cluster = lab.cluster
    text = cluster.daemon_config.read_text()
    for name in ("shared", "events"):
        text = text.replace(f'"{cluster.scratch}/{name}"', f'"{lab.home}/{name}"')
    cluster.write_daemon_config(text.replace("[rules]", '[scope]\ndefault = "all"\n\n[rules]'))
    cluster.start_daemon()
    job = cluster.sbatch("#!/bin/sh\nsrun sh -c 'env | grep NCCL_DEBUG_FILE; exit 3'\n", "-N1")
    assert cluster.wait_job(job) == "FAILED"
    assert f"NCCL_DEBUG_FILE={lab.home}/spool/{job}." in cluster.output(job)
    cluster.wait_comment(job)
    assert wait_until(lambda: records(cluster, job) <= {"present", "late"}, 120.0, every=1.0)
    cluster.stop_daemon()


def test_hooks_are_replaced_under_running_jobs(lab: Lab) -> None:
    cluster = lab.cluster
    jobs = [cluster.sbatch("#!/bin/sh\nsrun sleep 0.2\n", "-N1", "--exclusive") for _ in range(12)]
    hook = lab.install.source / "slurm" / "prolog.d" / "50-nccl-slurm"
    for number in range(4):
        hook.write_bytes(hook.read_bytes() + f"# version {number}\n".encode())
        assert "replace: file 0755" in lab.install("--node", *lab.places).stdout
    assert {cluster.wait_job(job, timeout=120.0) for job in jobs} == {"COMPLETED"}
    cluster.wait_idle(60.0)
    assert states(cluster) == {("IDLE", "")}


def test_uninstall_waits_until_slurm_names_the_hooks_no_more(lab: Lab) -> None:
    cluster, conf = lab.cluster, lab.cluster.conf
    slurm = ("--slurm-bin", str(cluster.slurm_bin), "--slurm-conf", str(conf))
    gone = ("--uninstall", *lab.places[4:6], *slurm)
    refused = lab.install(*gone, check=False)
    assert refused.returncode == 1
    for line in hook_lines(lab.home):
        key, _, value = line.partition("=")
        assert any(f"scontrol show config: {key}" in told and value in told for told in refused.stderr.splitlines())
        assert f"{conf}: {line}" in refused.stderr
    assert (lab.resolved("hooks") / "task_prolog").exists()

    cluster.stop_slurmctld()
    silent = lab.install(*gone, check=False)
    assert silent.returncode == 1
    assert "Slurm can't be asked" in silent.stderr

    conf.write_text("".join(f"{line}\n" for line in conf.read_text().splitlines() if line not in hook_lines(lab.home)))
    cluster.start_slurmctld()
    unread = lab.install(*gone, check=False)
    assert unread.returncode == 1
    for name in NODES:
        pid = cluster._processes.pid(f"slurmd.{name}")
        assert f"slurmd (pid {pid}, since " in unread.stderr and f" is older than {conf} " in unread.stderr
    assert "--slurmd-reconfigured says that it was done" in unread.stderr
    cluster.reconfigure()
    gone = (*gone, "--slurmd-reconfigured")
    assert wait_until(lambda: lab.install(*gone, "--discard-records", check=False).returncode == 0, 60.0, every=2.0)
    handed_over = (f"{lab.home}/shared/", f"{lab.home}/events/")  # the controller's, and what lies in them
    left = {path for path in snapshot(lab.install.root) if not f"/{path}".startswith(handed_over)}
    assert left == {path for path in lab.before if not f"/{path}".startswith(handed_over)}
    job = cluster.sbatch("#!/bin/sh\nsrun true\n", "-N4")
    assert cluster.wait_job(job) == "COMPLETED"
    cluster.wait_idle(60.0)
    assert states(cluster) == {("IDLE", "")}
