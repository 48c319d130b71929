"""What is dropped where nodes hand records over: by users, and by root of a node that somebody took over."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.daemon.publish import publish
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until
from tests.cluster.scratch import USERS
from tests.collect.test_shared import record
from tests.security.loot import Canary, record_is_there, said

XID = {
    "kind": "kernel.xid",
    "text": "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.",
    "producer": "kernel",
    "role": "cause",
    "trust": "root",
    "hint": "gpu-hw-lost",
    "file": None,
    "line": None,
    "offset": None,
    "rank": None,
    "host": None,
    "time": None,
    "uncertainty_s": None,
    "data": {"xid": 79, "pci": "0000:a1:00"},
    "id": "",
}


def drop(lab: Cluster, value: Any, name: str) -> Path:
    path = lab.shared / "new" / name
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def taken(lab: Cluster) -> bool:
    return wait_until(lambda: os.listdir(lab.shared / "new") == [], 300, every=0.5)


def notes(lab: Cluster) -> str:
    return str(json.loads(lab.nccl_slurm("status", "--json").stdout)["notes"])


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_users_reach_neither_records_nor_events(lab: Cluster, user: str) -> None:
    folders = [lab.shared / name for name in ("new", "tmp", "quarantine", "reports")]
    folders += [lab.events / "new", lab.events / "tmp", lab.events, lab.shared, lab.scratch / "daemon"]
    for folder in folders:
        assert "Permission denied" in lab.run(["touch", folder / "1.1.n1.json"], user=user, check=False).stderr
        assert (
            "Permission denied" in lab.run(["ln", "-s", "/etc/passwd", folder / "1.1"], user=user, check=False).stderr
        )
    for folder in folders[:6]:
        assert "Permission denied" in lab.run(["ls", folder], user=user, check=False).stderr, folder


def test_records_that_a_taken_node_forges(lab: Cluster) -> None:
    """n3 is root's no more. Its records of other nodes, jobs, sizes and shapes are believed nowhere."""
    canary = Canary.plant(lab.scratch / "dev" / "root-only.log", 0)
    job = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n1")
    outcome(lab, job)
    now, number = int(time.time()), int(job)
    good = record(job_id=number, node="n3", cluster="lab", written=time.time())
    forged: dict[str, Any] = {
        f"{job}.{now}.n3.json": {**good, "kernel_events": [XID]},
        f"{job}.{now}.n2.json": {**good, "node": "n3"},
        f"999999.{now}.n1.json": {**good, "job_id": 999999, "node": "n1"},
        f"{job}.{now}.n4.json": b" " * (5 << 20),
        f"{job}.{now + 1}.n3.json": b"[" * 200_000,
        f"{job}.{now + 2}.n3.json": json.dumps(good).replace('"written": ', '"written": NaN, "written": ').encode(),
        f"{job}.{now + 3}.n3.json": json.dumps(good).replace('"lines_unknown": 0', '"lines_unknown": 1e999').encode(),
        f"{job}.{now + 4}.n3.json": {**good, "schema": "nccl-slurm/node-record/2"},
        f"{job}.{now + 5}.n3.json": {**good, "node": "../../etc/passwd"},
        "a..json": good,
        "\x1b[2J\n.json": good,
        "\udcff.json": good,
        "x" * 240 + ".json": good,
    }
    for name, value in forged.items():
        drop(lab, value, name)
    (lab.shared / "new" / f"{job}.{now + 6}.n1.json").symlink_to(canary.path)
    (lab.shared / "new" / f"{job}.{now + 7}.n1.json").hardlink_to(canary.path)
    os.mkfifo(lab.shared / "new" / f"{job}.{now + 8}.n1.json")
    (lab.shared / "new" / f"{job}.{now + 9}.n1.json").mkdir()
    waiting = f"999999.{now}.n1.json"  # a job that Slurm may not know yet
    assert wait_until(lambda: os.listdir(lab.shared / "new") == [waiting], 300, every=0.5), os.listdir(
        lab.shared / "new"
    )
    (lab.shared / "new" / waiting).unlink()
    found = report(lab, job)
    assert [node["name"] for node in found["nodes"]] == ["n1"] and "Xid" not in str(found["facts"])
    assert "n3" not in lab.comment(job) and canary.word not in said(lab, job)
    assert "node n3 is not in the list" in notes(lab) and "\x1b" not in lab.nccl_slurm("status").stdout
    assert canary.path.stat().st_mode & 0o7777 == 0o600
    following = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n2")
    assert outcome(lab, following, ready=record_is_there).report["nodes"][0]["name"] == "n2"


def test_an_old_record_again_and_one_of_a_job_that_runs(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n1")
    first = outcome(lab, job, ready=record_is_there)
    kept = next(lab.spool.glob(f"n1/{job}.*"))
    drop(lab, (kept / "root" / "record.json").read_bytes(), f"{kept.name}.n1.json")
    running = lab.sbatch("#!/bin/sh\nsleep 20\nexit 1\n", "-w", "n2")
    lab.wait_job(running, {"RUNNING"})
    early = record(job_id=int(running), node="n2", cluster="lab", written=time.time(), kernel_events=[XID])
    drop(lab, early, f"{running}.{int(time.time())}.n2.json")
    assert taken(lab)
    assert outcome(lab, job).report["facts"] == first.report["facts"] and outcome(lab, job).comment == first.comment
    assert "[nccl-slurm" not in lab.slurm("squeue", "-h", "-j", running, "-O", "Comment:300").stdout
    last = outcome(lab, running, ready=lambda report: "Xid" not in str(report["facts"]))
    assert "79" not in last.comment and not last.culprits, "the node's own record is newer and replaces the forged one"


def test_a_flood_of_forged_records_and_events(lab: Cluster) -> None:
    for number in range(3000):
        drop(lab, b"{}", f"{number + 1}.{number + 1}.n1.json")
    outside = lab.scratch / "dev" / "outside"
    outside.write_text("x")
    for name in ("..%2f..%2fetc", "1.1;id", "-rf", "\n1.1", "9" * 200 + ".0"):
        (lab.events / "new" / name).write_text("x")
    (lab.events / "new" / "77.0").symlink_to(outside)
    job = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n1")
    outcome(lab, job, ready=record_is_there)
    assert taken(lab)
    assert len(os.listdir(lab.shared / "quarantine")) <= 1000 and outside.read_text() == "x"
    assert os.listdir(lab.events / "new") == [] and lab.alive("nccl-slurm")


def test_a_shared_folder_that_anyone_may_write_takes_no_report(lab: Cluster) -> None:
    lab.shared.chmod(0o777)
    try:
        lab.run(["mv", lab.shared / "reports", lab.shared / "reports.away"], user="bob")
        lab.run(["mkdir", "-m", "0755", lab.shared / "reports"], user="bob")
        job = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n1")
        outcome(lab, job)
        assert os.listdir(lab.shared / "reports") == []
        assert f"belongs to uid {USERS['bob']}; chown it to the daemon's user" in notes(lab)
    finally:
        lab.shared.chmod(0o755)
        lab.run(["rm", "-rf", lab.shared / "reports"])
        (lab.shared / "reports.away").rename(lab.shared / "reports")


def test_a_job_id_that_slurm_gives_away_again(tmp_path: Path) -> None:
    """The run of the earlier owner stays that owner's; the newest is the new owner's alone."""
    for run, owner in ((1, "alice"), (2, "bob")):
        made = {"job": {"id": "42", "run": run}, "words": owner}
        assert publish(str(tmp_path), made, USERS[owner], made=float(run), newest=True) is None
    tmp_path.chmod(0o711)
    for folder in (*tmp_path.parents[:2], tmp_path.parents[2]):
        assert folder.is_dir()
    acls = {path.name: os.getxattr(path, "system.posix_acl_access") for path in tmp_path.iterdir()}
    assert acls["42.json"] == acls["42.run2.json"] != acls["42.run1.json"]
    assert USERS["bob"].to_bytes(4, "little") in acls["42.json"]
    assert USERS["bob"].to_bytes(4, "little") not in acls["42.run1.json"]
