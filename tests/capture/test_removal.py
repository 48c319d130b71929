"""Removal of runs whose user works against it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccl_slurm.capture import removal, spool, sweep
from tests.capture.test_spool import conf_of, deliver, make

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root takes a folder from its user")
ALICE = 7001
ADD = "while :; do i=$((i+1)); command : >file$i; mkdir -m 777 folder$i; command : >folder$i/file; done 2>/dev/null"
DEEPEN = "while :; do mkdir -m 777 deeper && command cd deeper; done 2>/dev/null"


@pytest.fixture
def run(tmp_path: Path) -> spool.Run:
    """Delivered long ago, with two folders of alice's."""
    made = make(tmp_path / "spool", "42.1700000000", closed="epilog")
    for name in ("", "sub", "sub/sub"):
        path = os.path.join(made.user, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
        os.chown(path, ALICE, ALICE)
    deliver(made, 100)
    return made


@pytest.fixture
def alice(run: spool.Run) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that left the job, and go on in folders that they hold open."""
    places = ((ADD, "sub"), (ADD, "sub/sub"), (ADD, ""), (DEEPEN, "sub"))
    with ExitStack() as stack:
        held = []
        for script, name in places:
            cwd = os.path.join(run.user, name)
            process = subprocess.Popen(["/bin/sh", "-c", script], cwd=cwd, user=ALICE, group=ALICE, extra_groups=[])
            stack.callback(process.wait)
            stack.callback(process.kill)
            held.append(process)
        end = time.monotonic() + 60
        while len(os.listdir(os.path.join(run.user, "sub/sub"))) < 20 and time.monotonic() < end:
            time.sleep(0.05)
        yield held


def test_a_user_who_goes_on_adding_keeps_nothing(
    tmp_path: Path, run: spool.Run, alice: list[subprocess.Popen[bytes]]
) -> None:
    assert sweep.sweep(conf_of(tmp_path, spool=os.path.dirname(run.path))) == []
    assert not os.path.exists(run.path)
    assert [process.poll() for process in alice] == [None] * len(alice)


def test_roots_part_goes_last(run: spool.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be removed stays a run of which the timer knows."""
    monkeypatch.setattr(removal, "_rm", lambda path, end: "Directory not empty")
    assert removal.remove(run.path, 60) == [f"{run.path}: not removed: Directory not empty"]
    assert run.delivered is not None and run.closed_by == "epilog" and os.stat(run.user).st_uid == 0


def test_what_an_earlier_removal_left_is_removed_but_not_what_a_prolog_makes(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    for name in ("41.1700000000", "43.1700000000"):
        (folder / name / "user" / "sub").mkdir(parents=True)
    (folder / "44.1700000000").symlink_to(tmp_path)
    os.utime(folder / "41.1700000000", (1700000000, 1700000000))
    assert sweep.sweep(conf_of(tmp_path, spool=str(folder))) == []
    assert sorted(os.listdir(folder)) == ["43.1700000000", "44.1700000000"]


@pytest.fixture
def mounted(run: spool.Run) -> Iterator[str]:
    point = os.path.join(run.user, "sub", "a mount")
    os.mkdir(point)
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    yield point
    subprocess.run(["umount", "--lazy", point], check=True)


def test_a_mount_of_the_user_is_told_of_and_costs_no_other_run(tmp_path: Path, run: spool.Run, mounted: str) -> None:
    Path(run.user, "large").write_bytes(os.urandom(3_000_000))
    other = make(tmp_path / "spool", "43.1700000001", closed="epilog")
    deliver(other, 1)
    conf = conf_of(tmp_path, spool=str(tmp_path / "spool"), spool_max_mb=2.0)
    for _ in range(2):
        assert sweep.sweep(conf) == [f"{run.path}: not removed: {mounted} is a mount point"]
    assert {one.job_id for one in spool.runs(conf.spool)} == {42, 43}
    assert os.path.exists(os.path.join(run.user, "large"))
