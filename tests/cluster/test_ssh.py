"""A real Slurm without a shared folder for records: nodes offer them, the daemon fetches them from a real sshd."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.harness import NODES, Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until
from tests.collect.sshd import Sshd, keys, running, skip_reason

pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FAILS = "#!/bin/sh\nsrun false\n"


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Cluster]:
    """Nodes with an outbox and no shared folder; a daemon whose host keys are right for n1 to n3, and not for n4."""
    cluster.heal()
    if cluster.alive("nccl-slurm"):
        cluster.stop_daemon()
    before = cluster.daemon_config.read_text(), cluster.capture_conf.read_text()
    shared = f"NCCL_SLURM_SHARED={cluster.scratch}/shared"
    assert shared in before[1]
    cluster.capture_conf.write_text(before[1].replace(shared, "NCCL_SLURM_OUTBOX_GROUP=root\nNCCL_SLURM_SHARED="))
    assert wait_until(lambda: not workers(cluster), 180, every=0.5)  # they read capture.conf at their start
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-site-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = folder / "nccl-slurm-node"
        program.write_text(
            "#!/bin/sh\n"
            "address=$(echo $SSH_CONNECTION | cut -d ' ' -f 3)\n"
            '[ -z "$address" ] || export SLURMD_NODENAME=n${address##*.}\n'
            f'exec {cluster.scratch}/prefix/slurm/nccl-slurm-node --conf {cluster.capture_conf} "$@"\n'
        )
        program.chmod(0o755)
        sshd = Sshd(folder / "sshd", list(NODES.values()), keys(folder / "key"), f"{program} serve")
        other = keys(folder / "other")
        (folder / "known_hosts").write_text(sshd.known("n1", "n2", "n3") + f"[n4]:{sshd.port} {other}\n")
        cluster.write_daemon_config(
            before[0].replace(f'shared = "{cluster.scratch}/shared"', 'shared = ""')
            + f'[ssh]\nuser = "root"\nkey_file = "{folder}/key"\nknown_hosts = "{folder}/known_hosts"\n'
            + f'port = {sshd.port}\ncommand = "{program}"\nwait_s = 1\nconnect_s = 60\nvisit_s = 120\n'
            + '[scope]\ndefault = "all"\n'
        )
        with running(sshd):
            cluster.start_daemon()
            yield cluster
            cluster.stop_daemon()
    cluster.write_daemon_config(before[0])
    cluster.capture_conf.write_text(before[1])


def workers(cluster: Cluster) -> list[int]:
    """Of this cluster's nodes, by their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
            if b"capture/main.py\0work" in command and str(cluster.capture_conf).encode() in environment:
                found.append(int(folder.name))
    return found


def records(lab: Cluster, job: str) -> dict[str, str]:
    told = json.loads(lab.nccl_slurm("report", job, "--json").stdout)
    return {node["name"]: node["record"] for node in told["nodes"]}


def test_records_come_by_ssh_and_the_comment_is_written(lab: Cluster) -> None:
    lab.heal()
    job = lab.sbatch(FAILS, "-w", "n[1-2]", "-N2")
    there = {"present", "late"}
    found = outcome(lab, job, ready=lambda report: all(node["record"] in there for node in report["nodes"]))
    assert found.state == "FAILED" and f"report {job}]" in found.comment
    assert set(records(lab, job)) == {"n1", "n2"}
    assert not list((lab.scratch / "shared" / "new").glob(f"{job}.*"))
    assert lab.nccl_slurm("collect", job).stdout == "no record is missing\n"


def test_a_node_whose_host_key_changed_is_refused_and_named(lab: Cluster) -> None:
    lab.heal()
    job = lab.sbatch(FAILS, "-w", "n[3-4]", "-N2")
    lab.wait_comment(job, timeout=180.0)
    assert wait_until(lambda: records(lab, job)["n3"] in ("present", "late"), 120.0, every=1.0)
    assert records(lab, job)["n4"] == "missing"
    assert "n4: its host key is not the known one" in lab.nccl_slurm("status").stdout
    done = lab.nccl_slurm("collect", job, check=False)
    assert done.returncode == 1 and "n4: its host key is not the known one" in done.stdout


def test_a_probe_by_ssh_and_beside_a_job(lab: Cluster) -> None:
    lab.heal()
    assert "n1: machine " in lab.nccl_slurm("probe", "n1").stdout
    job = lab.sbatch("#!/bin/sh\nsleep 600\n", "-w", "n2")
    lab.wait_job(job, {"RUNNING"})
    for user in ("alice", None):
        told = json.loads(lab.nccl_slurm("probe", "n2", "--job", job, "--json", user=user).stdout)
        assert (told["calls_itself"], bool(told["snapshot"]["load"])) == ("n2", True)
    done = lab.nccl_slurm("probe", "n1", "--job", job, check=False)
    assert done.returncode == 1 and f"does job {job} run there?" in done.stderr
    lab.slurm("scancel", job, user="alice")
    lab.wait_job(job)
    assert {row["derivedexitcode"] for row in lab.sacct(job, "derivedexitcode")} == {"0:0"}
