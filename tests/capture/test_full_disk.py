"""A spool on a disk of its own that is too small, or full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.capture import ship, spool, sweep, worker
from nccl_slurm.capture.conf import Conf
from nccl_slurm.collect.shared import validate_record
from tests.capture.test_spool import conf_of, deliver, make, with_record
from tests.cluster import mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """10 MB."""
    folder = tmp_path / "spool"
    folder.mkdir()
    with mounts.private_mounts(), mounts.mounted(folder, "-t", "tmpfs", "-o", "size=10m,nr_inodes=200", "none"):
        yield folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    for name in ("tmp", "new"):
        (tmp_path / "shared" / name).mkdir(parents=True, mode=0o700)
    return tmp_path / "shared"


def fill(folder: Path) -> None:
    with (folder / "filled").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_small_disk_is_kept_half_free_whatever_the_limit_says(tmp_path: Path, disk: Path) -> None:
    for number in range(3):
        run = make(disk, f"{number}.170000000{number}", closed="epilog")
        Path(run.user, "nccl.log").write_bytes(bytes(3_000_000))
        deliver(run, 3 - number)
    assert sweep.sweep(conf_of(tmp_path, spool=str(disk))) == []
    assert [run.job_id for run in spool.runs(str(disk))] == [2]


def test_out_of_inodes_counts_as_full(tmp_path: Path, disk: Path) -> None:
    run = make(disk, "1.1700000000", closed="epilog")
    deliver(run, 1)
    for number in range(180):
        Path(run.user, f"nccl.{number}.log").touch()
    assert sweep.sweep(conf_of(tmp_path, spool=str(disk))) == []
    assert spool.runs(str(disk)) == []


def test_what_others_fill_is_told(tmp_path: Path, disk: Path) -> None:
    make(disk, "1.1700000000")
    fill(disk)
    problems = sweep.sweep(conf_of(tmp_path, spool=str(disk)))
    assert [problem for problem in problems if "nearly full" in problem]
    assert len(spool.runs(str(disk))) == 1


def test_a_record_is_marked_delivered_on_a_full_disk(disk: Path, shared: Path) -> None:
    run = with_record(make(disk, "1.1700000000", closed="epilog"))
    fill(disk)
    assert ship.deliver(Conf(shared=str(shared)), run, "n1") is None
    assert run.delivered is not None and os.path.getsize(run.root("delivered")) == 0


def test_a_record_that_the_disk_did_not_take_is_shipped_from_memory(disk: Path, shared: Path) -> None:
    run = make(disk, "1.1700000000", closed="epilog")
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        spool.write_whole(run.root("record.json"), {"node": "n1"})
    assert ship.deliver(Conf(shared=str(shared)), run, "n1", record=b'{"node": "n1"}') is None
    assert (shared / "new" / "1.1700000000.n1.json").read_bytes() == b'{"node": "n1"}'


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
def test_a_shared_folder_that_hangs_costs_one_process_and_ends(tmp_path: Path, disk: Path, shared: Path) -> None:
    runs = [with_record(make(disk, f"{number}.1700000000", closed="epilog")) for number in range(3)]
    with mounts.hung(shared / "new"):
        told = [ship.deliver(Conf(shared=str(shared)), run, "n1", limit_s=1.0) for run in runs]
        left = children()
    assert told == ["the shared folder did not answer within 1 s"] * 3
    assert len(left) == 1 and all(run.delivered is None for run in runs)
    os.waitpid(left[0], 0)


def children() -> list[int]:
    """That could not be killed: one that could is a zombie, or gone."""
    folder = Path(f"/proc/self/task/{os.getpid()}/children")
    return [pid for pid in map(int, folder.read_text().split()) if _state(pid) == "D"]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


def test_the_end_of_a_run_on_a_full_disk_still_gives_a_record(tmp_path: Path, disk: Path, shared: Path) -> None:
    run = make(disk, "1.1700000000", closed="epilog")
    fill(disk)
    assert worker.finish(conf_of(tmp_path, spool=str(disk), shared=str(shared)), run) is None
    record = validate_record((shared / "new" / "1.1700000000.n1.json").read_bytes())
    assert record["job_id"] == 1 and run.delivered is not None
    assert not os.path.exists(run.root("record.json"))


def test_a_user_who_took_the_last_name_does_not_keep_it(tmp_path: Path, disk: Path, shared: Path) -> None:
    """The epilog could write neither epilog.env nor closed."""
    run = make(disk, "1.1700000000")
    with pytest.raises(OSError, match="No space"):
        for number in range(1000):
            Path(run.user, f"{number}.log").touch()
    assert worker.finish(conf_of(tmp_path, spool=str(disk), shared=str(shared)), run) is None
    assert validate_record((shared / "new" / "1.1700000000.n1.json").read_bytes())["job_id"] == 1
    assert run.closed_by == "epilog" and run.delivered is not None and not os.path.exists(run.user)
    assert sweep.sweep(conf_of(tmp_path, spool=str(disk), retain_hours=0.0)) == []
    assert spool.runs(str(disk)) == []
