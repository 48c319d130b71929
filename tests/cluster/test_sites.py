"""The same daemon on sites that differ: its store in MariaDB, a Slurm without slurmdbd, as SlurmUser."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until

FAILS = "#!/bin/sh\nsrun false\n"


@pytest.fixture
def lab(idle_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose daemon configuration a test may change: put back afterwards."""
    if idle_cluster.alive("nccl-slurm"):
        idle_cluster.stop_daemon()
    before = idle_cluster.daemon_config.read_text()
    yield idle_cluster
    if idle_cluster.alive("nccl-slurm"):
        idle_cluster.stop_daemon()
    idle_cluster.write_daemon_config(before)


def configure(lab: Cluster, text: str) -> None:
    lab.write_daemon_config(lab.daemon_config.read_text() + text)
    lab.start_daemon()


def database(lab: Cluster) -> dict[str, str]:
    """slurmdbd's own settings: StoragePort, StorageUser, StoragePass …"""
    lines = (lab.scratch / "etc" / "slurmdbd.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.mariadb
def test_store_in_the_mariadb_that_slurmdbd_uses(lab: Cluster) -> None:
    server = database(lab)
    password = lab.scratch / "etc" / "store.password"
    password.write_text(server["StoragePass"] + "\n")
    password.chmod(0o600)
    url = f"mariadb+pymysql://{server['StorageUser']}@127.0.0.1:{server['StoragePort']}/nccl_slurm"
    configure(lab, f'\n[scope]\ndefault = "all"\n[store]\nurl = "{url}"\npassword_file = "{password}"\n')
    job = lab.sbatch(FAILS, "-N2", "--comment=mine")
    found = outcome(lab, job)
    assert found.comment.startswith("mine [nccl-slurm: ")
    assert f"{job} " in lab.nccl_slurm("jobs", "--failed").stdout
    other = lab.nccl_slurm("jobs", user="bob", check=False)
    assert other.returncode == 3 and server["StoragePass"] not in other.stderr
    lab.stop_daemon()
    lab.start_daemon()
    assert outcome(lab, job).comment == found.comment


def test_as_slurm_user_with_fewer_sources(lab: Cluster) -> None:
    """Records are shipped as SlurmUser; what only root may read (job output of another user) is a gap."""
    slurm = pwd.getpwnam("slurm")
    folders = [lab.shared, *lab.shared.iterdir(), lab.scratch / "daemon", *(lab.scratch / "daemon").iterdir()]
    owners = [(path, path.stat()) for path in folders]
    capture = lab.capture_conf.read_text()
    try:
        for path in folders:
            os.chown(path, slurm.pw_uid, slurm.pw_gid)
        lab.capture_conf.write_text(capture + f"NCCL_SLURM_SHIP_UID={slurm.pw_uid}\n")
        lab.write_daemon_config(
            lab.daemon_config.read_text().replace("[daemon]", f"[daemon]\nrecord_uids = [{slurm.pw_uid}]")
            + '\n[scope]\ndefault = "all"\n'
        )
        lab.start_daemon(user="slurm")
        job = lab.sbatch(FAILS, "-N2", "--comment=mine")
        found = outcome(lab, job)
        assert found.comment.startswith("mine [nccl-slurm: ")
        assert [node["record"] for node in found.report["nodes"]] == ["present"] * 2
        assert any(gap["source"] == "job output" for gap in found.report["gaps"])
        lab.stop_daemon()
    finally:
        lab.capture_conf.write_text(capture)
        for path, before in owners:
            if path.exists():
                os.chown(path, before.st_uid, before.st_gid)


def test_without_slurmdbd_there_is_a_report_and_no_comment(release: str | None) -> None:
    with scratch_slot() as folder, Cluster(folder, release=release) as lab:
        lab.conf.write_text(lab.conf.read_text().replace("accounting_storage/slurmdbd", "accounting_storage/none"))
        lab.restart_slurmctld()
        lab.wait_idle(60)
        lab.write_daemon_config(lab.daemon_config.read_text() + '\n[scope]\ndefault = "all"\n')
        lab.start_daemon()
        job = lab.sbatch(FAILS, "-N2", "--comment=mine")
        lab.wait_job(job)
        assert wait_until(lambda: "class" in lab.nccl_slurm("report", job, check=False).stdout, 40)
        assert wait_until(lambda: "no slurmdbd: store and report only" in lab.nccl_slurm("status").stdout, 20)
        shown = lab.slurm("scontrol", "-o", "show", "job", job).stdout
        assert "Comment=mine" in shown and "[nccl-slurm" not in shown
