"""A job's report is for its owner and the admins: bob tries to get alice's, and alice to change her own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome, report
from tests.security.conftest import heal
from tests.security.loot import fingerprint


@pytest.fixture(scope="module")
def job(judged: Cluster) -> str:
    heal(judged)
    made = judged.sbatch("#!/bin/sh\necho 'RuntimeError: of alice alone'\nexit 1\n", "-w", "n1")
    outcome(judged, made)
    return made


def daemon(lab: Cluster) -> int:
    found = subprocess.run(["pgrep", "-f", f"daemon --config {lab.daemon_config}"], capture_output=True, text=True)
    return int(found.stdout.split()[0])


def test_bob_gets_nothing_by_our_commands(judged: Cluster, job: str) -> None:
    for words in (
        ("report", job),
        ("report", job, "--json"),
        ("report", job, "--run", "1"),
        ("bundle", job, "--dry-run"),
        ("jobs",),
        ("nodes",),
        ("status",),
    ):
        done = judged.nccl_slurm(*words, user="bob", check=False)
        assert (done.returncode, done.stdout) == (3, ""), words
        assert "alone" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert report(judged, job, user="alice")["job"]["id"] == job


def test_bob_gets_nothing_from_files_and_processes(judged: Cluster, job: str) -> None:
    pid = daemon(judged)
    state = judged.scratch / "daemon"
    files = [state / name for name in ("store.db", "store.db-wal", "patterns.json", "daemon.lock")]
    files += [judged.shared / "reports" / f"{job}.json", judged.shared / "reports" / f"{job}.run1.json"]
    files += [judged.scratch / "etc" / "slurmdbd.conf", *judged.spool.glob(f"n1/{job}.*/root/record.json")]
    files += [Path(f"/proc/{pid}/{name}") for name in ("environ", "mem", "maps")]
    assert len(files) == 11
    for path in files:
        done = judged.run(["head", "-c", "1", path], user="bob", check=False)
        assert done.returncode == 1 and done.stdout == "", path
    for folder in (state, judged.shared / "reports", Path(f"/proc/{pid}/fd"), judged.spool / "n1"):
        assert judged.run(["ls", folder], user="bob", check=False).stdout == "", folder
    told = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    assert "password" not in told and "alice" not in told
    ours = judged.run(["find", "/tmp", "-name", "*nccl-slurm*"], check=False).stdout.splitlines()
    assert [path for path in ours if b"of alice alone" in _readable(Path(path))] == []


def _readable(path: Path) -> bytes:
    """By everybody; others make and remove files there meanwhile."""
    with contextlib.suppress(OSError):
        return path.read_bytes() if path.is_file() and path.stat().st_mode & 0o004 else b""
    return b""


def test_alice_makes_a_bundle_of_her_own_job_and_root_one_with_records(judged: Cluster, job: str) -> None:
    """What Slurm says to each of them is in it; records of nodes are for admins."""
    told = {user: judged.nccl_slurm("bundle", job, "--dry-run", user=user).stdout for user in ("alice", "root")}
    for text in told.values():
        assert all(f"  slurm/{name}.txt\n" in text for name in ("version", "ping", "config", "sacct", "nodes")), text
        assert "  logs/001-" in text and "  support-case.md\n" in text
    assert "  nodes/n1/record.json\n" in told["root"] and "  slurm/run.json\n" in told["root"]
    assert "nodes/n1/" not in told["alice"]
    assert "not observed: node records and history of machines: the store is for admins" in told["alice"]


def test_alice_reads_her_report_and_changes_nothing(judged: Cluster, job: str) -> None:
    folder, mine = judged.shared / "reports", judged.shared / "reports" / f"{job}.json"
    before = fingerprint(folder)
    assert judged.run(["head", "-c", "1", mine], user="alice").stdout == "{"
    tries: list[list[str | Path]] = [
        ["sh", "-c", f"echo x >>{mine}"],
        ["chmod", "0666", mine],
        ["chown", "alice", mine],
        ["rm", "-f", mine],
        ["mv", mine, f"{mine}.old"],
        ["ln", mine, folder / "1.json"],
        ["ln", "-s", "/etc/shadow", folder / "1.json"],
        ["touch", folder / ".1.json.1"],
        ["mkdir", folder / "1.json"],
        ["python3", "-c", f"import os; os.setxattr({str(mine)!r}, 'system.posix_acl_access', b'x')"],
        ["python3", "-c", f"import os; os.truncate({str(mine)!r}, 0)"],
    ]
    for command in tries:
        assert judged.run(command, user="alice", check=False).returncode, command
    assert fingerprint(folder) == before


def test_bob_finds_no_folder_of_alice_and_no_way_into_one(judged: Cluster) -> None:
    judged.heal()
    running = judged.sbatch("#!/bin/sh\nsrun sleep 60\n", "-w", "n1")
    judged.wait_job(running, {"RUNNING"})
    spool = judged.spool / "n1"
    run = next(spool.glob(f"{running}.*"))
    before = {path for path in run.rglob("*") if "task." not in path.name}
    for path in (spool, spool / running / "user", run / "user", run / "root"):
        assert judged.run(["ls", path], user="bob", check=False).stdout == "", path
    for path in (
        spool / "123",
        run / "x",
        run / "user" / "nccl.log",
        run / "root" / "x",
        spool / running / "user" / "x",
    ):
        assert judged.run(["touch", path], user="bob", check=False).returncode == 1, path
    prolog = judged.scratch / "prefix" / "slurm" / "task_prolog"
    for extra in ([], ["NCCL_SLURM_CAPTURE=off"], ["NCCL_SLURM_SET=NCCL_DEBUG_FILE"]):
        forged = [
            "env",
            f"SLURM_JOB_ID={running}",
            "SLURM_JOB_UID=7001",
            "SLURMD_NODENAME=n1",
            "SLURM_STEP_ID=0",
            *extra,
        ]
        done = judged.run([*forged, prolog], user="bob", check=False)
        assert done.returncode == 0 and "export" not in done.stdout and str(run) not in done.stdout
    assert {path for path in run.rglob("*") if "task." not in path.name} == before
    judged.slurm("scancel", running)


def test_the_reader_leaves_no_core_file_and_can_not_write() -> None:
    code = "from nccl_slurm.capture.rights import limit_resources as l; import resource as r; l(5, 1 << 30);"
    code += "print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_FSIZE))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(0, 0) (0, 0)\n"
