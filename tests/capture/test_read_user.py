"""``read-user`` as the worker and the daemon run it: a process that starts as root and ends as the user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.capture import rights
from nccl_slurm.errors import InputError
from nccl_slurm.parse.flight_recorder import SIZE_LIMIT

MAIN = Path(__file__).resolve().parents[2] / "nccl_slurm" / "capture" / "main.py"
OTHER = 65534
TOO_LARGE = "flight recorder dump too large to read"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="nccl-slurm-home-"))
    made.chmod(0o755)
    (made / "user").mkdir(mode=0o700)
    (made / "user" / "nccl.n1.7.log").write_text("n1:7:9 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>\n")
    if os.geteuid() == 0:
        for path in (made / "user", made / "user" / "nccl.n1.7.log"):
            os.chown(path, OTHER, OTHER)
    yield made
    shutil.rmtree(made)


def read_user(*paths: Path, uid: int = OTHER, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = run(*paths, uid=uid, env=env)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run(*paths: Path, uid: int = OTHER, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", str(MAIN), "read-user", "--uid", str(uid), "--gid", str(uid), "--host", "n1"]
    return subprocess.run(
        [*argv, *map(str, paths)], env=env or {}, capture_output=True, text=True, check=False, timeout=60
    )


@as_root
def test_reads_a_users_private_folder(home: Path) -> None:
    answer = read_user(home / "user")
    assert [(one["path"], one["read"]) for one in answer["files"]] == [("nccl.n1.7.log", True)]
    assert answer["bytes_read"] == 55 and answer["gaps"] == []
    assert len(answer["patterns"]) == 64
    assert {fact["trust"] for fact in answer["facts"]} <= {"job"}


@as_root
def test_a_large_log_is_searched_with_the_users_rights(home: Path) -> None:
    """By grep where it is: without it there is a gap named ``search``."""
    log = home / "user" / "rank_1.log"
    log.write_text("step 1 loss 2.3\n" * 50_000 + "ValueError: x\n" + "step 2 loss 2.3\n" * 50_000)
    os.chown(log, OTHER, OTHER)
    log.chmod(0o400)
    answer = read_user(home / "user")
    assert [(fact["kind"], fact["line"]) for fact in answer["facts"]][-1] == ("python.exception", 50_001)
    assert answer["gaps"] == []
    assert answer["bytes_read"] == 55 + log.stat().st_size


@as_root
def test_a_star_stands_for_ranks_and_is_looked_up_with_the_users_rights(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    (closed / "rank1.log").write_text("root's own")
    answer = read_user(home / "user" / "nccl.*.log", closed / "rank*.log")
    assert [one["path"] for one in answer["files"]] == [str(home / "user" / "nccl.n1.7.log")]


@as_root
def test_what_the_user_may_not_read_stays_unread(home: Path) -> None:
    secret = home / "secret"
    secret.write_text("root's own")
    secret.chmod(0o600)
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    (closed / "x.log").write_text("x")
    answer = read_user(secret, closed / "x.log", Path("/etc/shadow"))
    assert answer["files"] == [] and answer["bytes_read"] == 0
    assert [one["why"] for one in answer["gaps"]] == ["Permission denied"] * 3


@as_root
def test_a_link_in_the_users_folder_reveals_nothing(home: Path) -> None:
    (home / "secret.log").write_text("NCCL WARN secret words")
    (home / "user" / "nccl.n1.8.log").symlink_to(home / "secret.log")
    os.link(home / "secret.log", home / "user" / "hard.log")
    os.mkfifo(home / "user" / "nccl.n1.9.log")
    text = json.dumps(read_user(home / "user"))
    assert "secret words" not in text and "nccl.n1.9.log" in text


#: KiB that a command took at most, on standard error. A process begins with the peak of the one that forked it, which
#: is pytest and large: so it is this program that starts the command.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


@as_root
def test_a_dump_that_asks_for_memory_is_a_gap_and_costs_little(home: Path) -> None:
    bomb = home / "user" / "nccl_trace_rank_0"
    bomb.write_bytes(b"\x80\x04}(\x8c\x07entries](" + b"}\x94" * ((SIZE_LIMIT >> 1) - 16) + b"eu.")
    os.chown(bomb, OTHER, OTHER)
    argv = [sys.executable, "-I", str(MAIN), "read-user", "--uid", str(OTHER), "--gid", str(OTHER), str(home / "user")]
    done = subprocess.run([sys.executable, "-I", "-c", PEAK, *argv], env={}, capture_output=True, check=True)
    told, peak = json.loads(done.stdout), int(done.stderr)
    assert 10 << 10 < peak < 400 << 10
    assert [(gap["source"], gap["why"]) for gap in told["gaps"]] == [(bomb.name, f"can't be read: {TOO_LARGE}")]
    assert [file["path"] for file in told["files"] if file["read"]] == ["nccl.n1.7.log"]


def test_another_users_rights_need_root(home: Path) -> None:
    if os.geteuid() == 0:
        os.chown(home, OTHER, OTHER)
        done = subprocess.run(
            [
                "setpriv",
                f"--reuid={OTHER}",
                f"--regid={OTHER}",
                "--clear-groups",
                sys.executable,
                "-I",
                MAIN,
                "read-user",
                "--uid",
                "1",
                "--gid",
                "1",
                "/",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if "Permission denied" in done.stderr:
            pytest.skip("the checkout or its Python is not readable by others")
    else:
        done = run(home, uid=OTHER)
    assert done.returncode == 1 and "only root can read as uid" in done.stderr


def test_missing_pattern_rows_are_a_gap_not_a_traceback(home: Path) -> None:
    answer = read_user(home / "user", env={"NCCL_SLURM_PATTERNS": "/nonexistent/rows.json"})
    assert answer["facts"] == [] and "/nonexistent/rows.json" in answer["gaps"][0]["why"]


@as_root
def test_rights_cannot_be_taken_back() -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rights.become(OTHER, OTHER)
            status = 0 if os.getresuid() == (OTHER,) * 3 and os.getresgid() == (OTHER,) * 3 else 2
            if os.getgroups() != [OTHER]:
                status = 3
            os.setuid(0)
        except PermissionError:
            os._exit(status)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@as_root
def test_root_reads_roots_own_without_a_change() -> None:
    rights.become(0, 0)
    assert os.geteuid() == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root can take any rights")
def test_become_refuses_without_root() -> None:
    with pytest.raises(InputError):
        rights.become(OTHER, OTHER)
