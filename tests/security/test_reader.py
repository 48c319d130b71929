"""What the process that reads a user's files still holds of root's, once it has become that user."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.capture import child, rights
from tests.cluster.scratch import USERS, ensure_users

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
ALICE = USERS["alice"]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forked as the worker forks it, from a process with a lock, a root-only file and a pipe, and a secret variable."""
    ensure_users()
    monkeypatch.setenv("SECRET", "of the worker")
    secret = tmp_path / "root-only"
    secret.write_text("x")
    secret.chmod(0o600)
    ends = os.pipe()
    with secret.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = child.answer_of(lambda: json.dumps(described(secret)), limit_s=120, limit_bytes=1 << 20)
    for end in ends:
        os.close(end)
    assert answer.why is None, answer
    return dict(json.loads(answer.text))


def described(secret: Path) -> dict[str, Any]:
    """By the reader, of itself, when it has done all that it does before it opens the first path."""
    rights.limit_resources(60, 3 << 30)
    rights.become(ALICE, ALICE)
    status = Path("/proc/self/status").read_text()
    tries: dict[str, Callable[[], object]] = {
        "root again": lambda: os.setresuid(0, 0, 0),
        "root's group": lambda: os.setresgid(0, 0, 0),
        "more groups": lambda: os.setgroups([0]),
        "own environment": Path("/proc/self/environ").read_bytes,
        "own memory": Path("/proc/self/mem").open,
        "root's file": secret.read_bytes,
        "a file written": lambda: os.write(os.open("/tmp", os.O_TMPFILE | os.O_RDWR), b"x"),
    }
    return {
        "status": dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line),
        "open": {name: target for name in os.listdir("/proc/self/fd") if (target := _target(name))},
        "done": [name for name, act in tries.items() if _works(act)],
        "dumpable": _dumpable(),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "looked into": _looked_into(os.getpid()),
    }


def _dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE


def _looked_into(reader: int) -> list[str]:
    """What another process of the user reads and does of this one."""
    readable, writable = os.pipe()
    other = os.fork()
    if other == 0:
        tries = {name: Path(f"/proc/{reader}/{name}").read_bytes for name in ("environ", "maps", "stack", "syscall")}
        traced = {"ptrace": lambda: _attached(reader), "fd": lambda: os.listdir(f"/proc/{reader}/fd")}
        os.write(writable, json.dumps([name for name, act in {**tries, **traced}.items() if _works(act)]).encode())
        os._exit(0)
    os.waitpid(other, 0)
    done = json.loads(os.read(readable, 4096))
    os.close(readable)
    os.close(writable)
    return list(done)


def _attached(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, pid, None, None):  # PTRACE_SEIZE: does not stop it
        raise OSError(ctypes.get_errno(), "ptrace")


def _target(name: str) -> str | None:
    """None for the one that listed the others."""
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return None


def _works(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def test_it_is_the_user_and_nothing_else(reader: dict[str, Any]) -> None:
    status = reader["status"]
    assert status["Uid"].split() == status["Gid"].split() == [str(ALICE)] * 4
    assert status["Groups"].split() == [str(ALICE)]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, kind


def test_its_user_can_look_into_nothing_of_it(reader: dict[str, Any]) -> None:
    assert (reader["dumpable"], reader["looked into"]) == (0, [])


def test_no_program_that_it_runs_gets_more_rights_and_it_is_the_first_to_go(reader: dict[str, Any]) -> None:
    assert (reader["status"]["NoNewPrivs"], reader["oom_score_adj"]) == ("1", 1000)


def test_it_shuts_itself_whatever_the_system_does() -> None:
    """fs.suid_dumpable can be 1: then giving root away leaves a process open."""

    def states() -> str:
        before = _dumpable()
        rights._shut()
        return f"{before} {_dumpable()}"

    assert child.answer_of(states, limit_s=60, limit_bytes=100).text == "1 0"


def test_it_holds_one_pipe_and_no_file_or_lock(reader: dict[str, Any]) -> None:
    targets = sorted(target.partition(":")[0] for target in reader["open"].values())
    assert targets == ["/dev/null"] * 3 + ["pipe"]


def test_it_gets_at_nothing_of_root(reader: dict[str, Any]) -> None:
    assert reader["done"] == []
