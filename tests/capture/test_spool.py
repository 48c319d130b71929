from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from nccl_slurm.capture import ship, spool, sweep
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.neighbours import Neighbours
from nccl_slurm.errors import InputError
from tests.capture.machine_tree import BOOT, EARLIER_BOOT, plain_machine


def make(folder: Path, name: str, *, boot: str = BOOT, prolog: bool = True, closed: str | None = None) -> spool.Run:
    (folder / name / "root").mkdir(parents=True)
    (folder / name / "user").mkdir()
    seconds = name.split(".")[1]
    if prolog:
        (folder / name / "root/prolog.env").write_text(f"time={seconds}\nboot_id={boot}\nSLURMD_NODENAME=n1\n")
    if closed:
        (folder / name / "closed").write_text(closed + "\n")
    return spool.open_run(str(folder), str(folder / name))


class TestRun:
    def test_runs_oldest_first_and_nothing_else(self, tmp_path: Path) -> None:
        for name in ("9.1700000002", "10.1700000001"):
            make(tmp_path, name)
        for name in ("events", "42", "42.x", "x.1", "gpu.lock", "42.1700000009"):
            (tmp_path / name).mkdir()
        (tmp_path / "7.1700000003").symlink_to(tmp_path / "9.1700000002")
        assert [run.name for run in spool.runs(str(tmp_path))] == ["10.1700000001", "9.1700000002"]
        assert spool.runs(str(tmp_path / "none")) == []

    @pytest.mark.parametrize("path", ["/etc", "{spool}/../x/42.1", "{spool}/42.1/root", "{spool}", "42.1"])
    def test_a_path_elsewhere_is_refused(self, tmp_path: Path, path: str) -> None:
        make(tmp_path / "spool", "42.1")
        with pytest.raises(InputError):
            spool.open_run(str(tmp_path / "spool"), path.format(spool=tmp_path / "spool"))

    def test_what_a_hook_wrote(self, tmp_path: Path) -> None:
        run = make(tmp_path, "42.1700000000")
        Path(run.root("epilog.env")).write_text("time=1700000009\nboot_id=\nSLURM_A=b=c\nbad line\n1X=2\nSLURM_B=\x1b")
        assert run.prolog == spool.Known(1700000000.0, BOOT, {"SLURMD_NODENAME": "n1"})
        assert run.epilog == spool.Known(1700000009.0, None, {"SLURM_A": "b=c", "SLURM_B": "\x1b"})

    def test_a_secret_in_a_variable_does_not_leave_the_node(self, tmp_path: Path) -> None:
        run = make(tmp_path, "42.1700000000")
        Path(run.root("epilog.env")).write_text("time=1700000009\nSLURM_JOB_COMMENT=run 7 password=hunter2\n")
        assert run.epilog is not None
        assert run.epilog.to_json()["env"] == {"SLURM_JOB_COMMENT": "run 7 password=[redacted]"}

    @pytest.mark.parametrize("text", ["", "time=", "time=soon\n", "time=99999999999999\n"])
    def test_a_cut_file_has_the_time_of_its_folder(self, tmp_path: Path, text: str) -> None:
        run = make(tmp_path, "42.1700000000", prolog=False)
        Path(run.root("prolog.env")).write_text(text)
        assert run.prolog == spool.Known(1700000000.0, None, {})

    def test_closed_by(self, tmp_path: Path) -> None:
        run = make(tmp_path, "42.1700000000")
        assert run.closed_by is None
        run.close("boot")
        assert run.closed_by == "boot"
        with pytest.raises(FileExistsError):
            run.close("sweep")

    def test_a_marker_of_any_kind_switches_capture_off(self, tmp_path: Path) -> None:
        run = make(tmp_path, "42.1700000000")
        assert not run.capture_off
        os.symlink("/nonexistent", os.path.join(run.user, "capture-off"))
        assert run.capture_off


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    spool.write_whole(str(path), {"a": "é"})
    assert path.read_text() == '{"a":"\\u00e9"}' and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError):
        spool.write_whole(str(path), {"a": float("nan")})
    assert path.read_text() == '{"a":"\\u00e9"}' and list(tmp_path.iterdir()) == [path]


def test_neighbours_by_their_times(tmp_path: Path) -> None:
    run = make(tmp_path, "42.1700000100")
    other = make(tmp_path, "43.1700000200", closed="epilog")
    os.utime(os.path.join(other.path, "closed"), (1700000300, 1700000300))
    seen = Neighbours(str(tmp_path), run)
    assert [seen.between(start, end) for start, end in ((1700000100, 1700000199), (1700000301, 1700000400))] == [
        False
    ] * 2
    assert seen.between(1700000100, 1700000200) and seen.between(1700000299, 1700000400)
    make(tmp_path, "44.1700000500")
    assert Neighbours(str(tmp_path), run).between(1700009999, 1700009999)


def test_neighbours_that_follow_within_a_second(tmp_path: Path) -> None:
    first, second = make(tmp_path, "42.1700000100", closed="epilog"), make(tmp_path, "43.1700000200")
    times = {"42.1700000100/closed": 1700000200.4, "43.1700000200/root/prolog.env": 1700000200.6}
    for name, at in times.items():
        os.utime(tmp_path / name, (at, at))
    prolog = second.prolog
    assert prolog and prolog.time == pytest.approx(1700000200.6, abs=1e-3)
    assert not Neighbours(str(tmp_path), second).between(prolog.time, 1700000300)
    assert not Neighbours(str(tmp_path), first).between(1700000100, 1700000200.3)
    assert Neighbours(str(tmp_path), first).between(1700000100, 1700000200.7)
    assert Neighbours(str(tmp_path), first).next_after(1700000200.3) == prolog.time
    assert Neighbours(str(tmp_path), second).next_after(1700000200.3) is None


def test_runs_of_another_boot_are_no_neighbours(tmp_path: Path) -> None:
    died = make(tmp_path, "42.1700000100", boot=EARLIER_BOOT)
    make(tmp_path, "43.1700000200")
    assert not Neighbours(str(tmp_path), died).between(1700000100, 1700009999)
    make(tmp_path, "44.1700000300", prolog=False)
    assert Neighbours(str(tmp_path), died).between(1700000100, 1700009999)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    for name in ("tmp", "new"):
        (tmp_path / "shared" / name).mkdir(parents=True, mode=0o700)
    return tmp_path / "shared"


def with_record(run: spool.Run, node: str = "n1") -> spool.Run:
    spool.write_whole(run.root("record.json"), {"node": node})
    return run


class TestShip:
    def test_delivers_whole_and_private(self, tmp_path: Path, shared: Path) -> None:
        run = with_record(make(tmp_path / "spool", "42.1700000000", closed="epilog"))
        assert ship.deliver(Conf(shared=str(shared)), run, "n1") is None
        (record,) = (shared / "new").iterdir()
        assert record.name == "42.1700000000.n1.json" and json.loads(record.read_text()) == {"node": "n1"}
        assert record.stat().st_mode & 0o777 == 0o600
        assert list((shared / "tmp").iterdir()) == [] and run.delivered is not None

    def test_never_makes_the_folders(self, tmp_path: Path) -> None:
        run = with_record(make(tmp_path / "spool", "42.1700000000", closed="epilog"))
        why = ship.deliver(Conf(shared=str(tmp_path / "not-mounted")), run, "n1")
        assert why is not None and "not-mounted" in why
        assert run.delivered is None and not (tmp_path / "not-mounted").exists()

    @pytest.mark.parametrize(
        ("folder", "uid", "mode", "why"),
        [
            ("new", 7001, 0o700, "new: belongs to uid 7001; chown it to uid 0"),
            ("tmp", 7001, 0o700, "tmp: belongs to uid 7001; chown it to uid 0"),
            ("new", 0, 0o777, "new: others may write here (mode 0777); chmod 0700"),
            ("tmp", 0, 0o720, "tmp: others may write here (mode 0720); chmod 0700"),
        ],
    )
    def test_a_folder_of_somebody_elses_gets_nothing(
        self, tmp_path: Path, shared: Path, folder: str, uid: int, mode: int, why: str
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.chown(shared / folder, uid, uid)
        (shared / folder).chmod(mode)
        run = with_record(make(tmp_path / "spool", "42.1700000000", closed="epilog"))
        told = ship.deliver(Conf(shared=str(shared)), run, "n1")
        assert told is not None and told.endswith(why)
        assert run.delivered is None and not list(shared.glob("*/*"))

    def test_no_shared_folder_no_record(self, tmp_path: Path, shared: Path) -> None:
        run = make(tmp_path / "spool", "42.1700000000", closed="epilog")
        assert ship.deliver(Conf(), run, "n1") == "no NCCL_SLURM_SHARED is set"
        assert ship.deliver(Conf(shared=str(shared)), run, "n1") == "record.json: No such file or directory"

    @pytest.mark.parametrize("part", ["new", "tmp"])
    def test_does_not_write_through_a_link(self, tmp_path: Path, shared: Path, part: str) -> None:
        run = with_record(make(tmp_path / "spool", "42.1700000000", closed="epilog"))
        (shared / part).rmdir()
        (shared / part).symlink_to(tmp_path)
        assert ship.deliver(Conf(shared=str(shared)), run, "n1") is not None
        assert run.delivered is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can write as another user")
    def test_as_another_user_where_root_is_squashed(self, tmp_path: Path, shared: Path) -> None:
        run = with_record(make(tmp_path / "spool", "42.1700000000", closed="epilog"))
        conf = Conf(shared=str(shared), ship_uid=65534)
        assert ship.deliver(conf, run, "n1") is not None, "pytest's folder is closed to others"
        outside = subprocess.check_output(["mktemp", "-d"], text=True).strip()
        try:
            subprocess.run(["sh", "-c", f"mkdir {outside}/tmp {outside}/new && chown -R 65534 {outside}"], check=True)
            assert ship.deliver(Conf(shared=outside, ship_uid=65534), run, "n1") is None
            assert os.stat(f"{outside}/new/42.1700000000.n1.json").st_uid == 65534
        finally:
            subprocess.run(["rm", "-r", outside], check=True)


def deliver(run: spool.Run, age_h: float) -> None:
    path = with_record(run).root("delivered")
    Path(path).touch()
    os.utime(path, (time.time() - age_h * 3600,) * 2)


def conf_of(
    folder: Path, *, spool: str, shared: str = "", retain_hours: float = 72, spool_max_mb: float = 4096
) -> Conf:
    """A node that runs on BOOT."""
    root = folder / "machine"
    if not root.exists():
        plain_machine(root)
    return Conf(
        spool=spool,
        shared=shared,
        retain_hours=retain_hours,
        spool_max_mb=spool_max_mb,
        sysroot=str(root),
        kernel_log=os.devnull,
    )


class TestSweep:
    def test_ships_late_and_keeps_fresh(self, tmp_path: Path, shared: Path) -> None:
        folder = tmp_path / "spool"
        late = with_record(make(folder, "42.1700000000", closed="epilog"))
        make(folder, "43.1700000000")
        assert sweep.sweep(conf_of(tmp_path, spool=str(folder), shared=str(shared))) == []
        assert [path.name for path in (shared / "new").iterdir()] == ["42.1700000000.n1.json"]
        assert late.delivered is not None and len(spool.runs(str(folder))) == 2

    def test_removes_what_was_delivered_long_ago(self, tmp_path: Path, shared: Path) -> None:
        folder = tmp_path / "spool"
        deliver(make(folder, "42.1700000000", closed="epilog"), 100)
        deliver(make(folder, "43.1700000000", closed="epilog"), 10)
        with_record(make(folder, "44.1600000000", closed="epilog"))
        sweep.sweep(conf_of(tmp_path, spool=str(folder), shared="", retain_hours=72))
        assert [run.job_id for run in spool.runs(str(folder))] == [44, 43]

    def test_over_the_limit_oldest_delivered_goes_first_then_users_files(self, tmp_path: Path) -> None:
        folder = tmp_path / "spool"
        old, new = make(folder, "42.1700000000", closed="epilog"), make(folder, "43.1700000001", closed="epilog")
        undelivered = make(folder, "44.1600000000", closed="epilog")
        for run in (old, new, undelivered):
            Path(run.user, "x.log").write_bytes(os.urandom(400_000))
        deliver(old, 1)
        deliver(new, 0.5)
        with_record(undelivered)
        conf = conf_of(tmp_path, spool=str(folder), spool_max_mb=1.0)
        sweep.sweep(conf)
        assert [run.job_id for run in spool.runs(str(folder))] == [44, 43]
        problems = sweep.sweep(conf_of(tmp_path, spool=str(folder), spool_max_mb=0.0))
        assert [run.job_id for run in spool.runs(str(folder))] == [44]
        assert not os.path.exists(undelivered.user) and os.path.exists(undelivered.root("record.json"))
        assert any("SPOOL_MAX_MB" in problem for problem in problems)

    def test_follows_no_link_out_of_the_spool(self, tmp_path: Path) -> None:
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_bytes(b"x" * 9_000_000)
        run = make(tmp_path / "spool", "42.1700000000", closed="epilog")
        os.symlink(tmp_path / "precious", os.path.join(run.user, "link"))
        deliver(run, 100)
        assert sweep.sweep(conf_of(tmp_path, spool=str(tmp_path / "spool"))) == []
        assert (tmp_path / "precious" / "file").exists() and spool.runs(str(tmp_path / "spool")) == []

    def test_closes_a_run_whose_job_started_here_again(self, tmp_path: Path, shared: Path) -> None:
        folder = tmp_path / "spool"
        old, new = make(folder, "42.1700000000"), make(folder, "42.1700000100")
        sweep.sweep(conf_of(tmp_path, spool=str(folder), shared=str(shared)))
        assert (old.closed_by, new.closed_by) == ("sweep", None)
        assert json.loads((shared / "new" / "42.1700000000.n1.json").read_text())["closed_by"] == "sweep"

    def test_finishes_what_a_killed_worker_left_but_not_one_at_work(self, tmp_path: Path, shared: Path) -> None:
        folder = tmp_path / "spool"
        killed, fresh = make(folder, "42.1700000000", closed="epilog"), make(folder, "43.1700000000", closed="epilog")
        os.utime(os.path.join(killed.path, "closed"), (1700000100, 1700000100))
        sweep.sweep(conf_of(tmp_path, spool=str(folder), shared=str(shared)))
        assert killed.delivered is not None and not os.path.exists(fresh.root("record.json"))

    def test_drops_links_of_closed_and_gone_runs(self, tmp_path: Path) -> None:
        folder = tmp_path / "spool"
        open_run, closed = make(folder, "1.1700000000"), make(folder, "2.1700000000", closed="epilog")
        for name, target in (("1", open_run.name), ("2", closed.name), ("3", "3.1700000000")):
            (folder / name).symlink_to(target)
        sweep.sweep(conf_of(tmp_path, spool=str(folder)))
        assert sorted(path.name for path in folder.iterdir() if path.is_symlink()) == ["1"]

    def test_does_at_the_timer_what_a_missing_boot_unit_left(self, tmp_path: Path) -> None:
        orphan = make(tmp_path / "spool", "42.1700000000", boot=EARLIER_BOOT)
        sweep.sweep(conf_of(tmp_path, spool=str(tmp_path / "spool")))
        assert orphan.closed_by == "boot"


def test_at_boot_only_runs_of_earlier_boots_are_closed(tmp_path: Path, shared: Path) -> None:
    folder, root = tmp_path / "spool", plain_machine(tmp_path / "machine")
    orphan, current = make(folder, "42.1700000000", boot=EARLIER_BOOT), make(folder, "43.1700000500")
    ended = make(folder, "44.1700000000", boot=EARLIER_BOOT, closed="epilog")
    conf = Conf(spool=str(folder), shared=str(shared), sysroot=str(root), kernel_log=os.devnull)
    assert sweep.close_orphans(conf) == []
    assert (orphan.closed_by, current.closed_by, ended.closed_by) == ("boot", None, "epilog")
    record = json.loads((shared / "new" / "42.1700000000.n1.json").read_text())
    assert record["closed_by"] == "boot" and record["prolog"]["boot_id"] == EARLIER_BOOT
    assert record["machine"]["boot_id"] == BOOT and record["snapshots"]["after"] is None
    assert {"epilog", "snapshot after", "run on this boot"} <= {gap["source"] for gap in record["gaps"]}
