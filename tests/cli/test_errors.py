"""What a newcomer does wrong: one line that names the remedy, the documented exit status, never a traceback."""

from __future__ import annotations

import fcntl
import grp
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nccl_slurm.cli import lookup, main, prompt, report, repro, status
from nccl_slurm.cli.main import main as nccl_slurm
from nccl_slurm.daemon.publish import published_name
from nccl_slurm.errors import NotYours
from nccl_slurm.history import store as store_module
from nccl_slurm.history.database import Database
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.model import Evidence
from nccl_slurm.report import text
from nccl_slurm.report.build import build

NOBODY = 65534
#: What a child that gives root away can't import any more: a checkout may be closed to others.
LOADED_BEFORE = (lookup, prompt, report, repro, status, store_module, text, Database)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine that runs the tests has."""
    monkeypatch.delenv("NCCL_SLURM_TRACEBACK", raising=False)
    monkeypatch.setenv("NCCL_SLURM_CONFIG", "/nonexistent/nccl-slurm.toml")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with nccl-slurm.toml, a store that knows run 1 of job 42, and a shared folder."""
    for part in ("state", "shared/reports", "rules.d"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "site.toml").write_text(_toml(tmp_path))
    with Store.open(f"sqlite:///{tmp_path}/state/store.db") as store:
        store.upsert_run(RunRow("lab", 42, 1, "42", nodes=("n1",), start=1795968218.0))
    return tmp_path


def _toml(folder: Path, more: str = "") -> str:
    paths = f'[paths]\nstate = "{folder}/state"\nshared = "{folder}/shared"\n'
    return f'{paths}[rules]\nfolder = "{folder}/rules.d"\n{more}'


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one line on standard error."""
    with pytest.raises(SystemExit) as left:
        nccl_slurm(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    return int(str(left.value.code)), _one_line(err)


def _one_line(err: str) -> str:
    assert err.startswith("nccl-slurm: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert err[:-1].isprintable()
    assert "; " in err, "no remedy"
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "No such command 'nosuch'; see nccl-slurm --help"),
        (["report"], "give either a JOBID or --logs PATH; see nccl-slurm report --help"),
        (["report", "42", "--logs", "."], "give either a JOBID or --logs PATH"),
        (["report", "--logs", ".", "--run", "1"], "--run goes with a JOBID"),
        (["report", "42", "--run", "0"], "'--run'"),
        (["report", "42", "43"], "unexpected extra argument (43)"),
        (["report", "42", "--nope"], "--nope"),
        (["report", "42.0"], "'42.0' is no job id, give it as squeue shows it: 42, 42_1 or 43+1"),
        (["report", "\x1b[31m42"], r"\x1b[31m42"),
        (["report", "../42"], "is no job id"),
        (["jobs", "--since", "5"], "'5' is no age, write 30m, 12h, 7d or 2w; see nccl-slurm jobs --help"),
        (["jobs", "--limit", "0"], "'--limit'"),
        (["status", "extra"], "unexpected extra argument (extra)"),
        (["config", "nope"], "see nccl-slurm config --help"),
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    status, line = fails(capsys, *arguments)
    assert status == 2
    assert words in line


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[daemon]\nsetle_s = 3", "daemon.setle_s: unknown key; did you mean settle_s?"),
        ("[deamon]", "deamon: unknown key; did you mean daemon?"),
        ("[zzzzzz]", "zzzzzz: unknown key; known here: access, comment"),
        ('[access]\n"a\\u001b[31m" = 1', r"access.a\x1b[31m: unknown key"),
    ],
)
def test_an_unknown_key_names_file_key_and_the_nearest_known_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, toml: str, words: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(toml)
    status, line = fails(capsys, "config", "check", "--config", str(file))
    assert status == 2
    assert f"{file}: {words}" in line


def test_a_configuration_that_is_not_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, "jobs", "--config", "/nonexistent/x.toml") == (
        2,
        "nccl-slurm: /nonexistent/x.toml: no such file; give --config the path of nccl-slurm.toml\n",
    )


@pytest.mark.parametrize("rows", ["[[[", '[[row]]\nid = "mine"', "row = 3"])
def test_a_bad_rule_of_the_site_names_its_file(capsys: pytest.CaptureFixture[str], site: Path, rows: str) -> None:
    (site / "rules.d" / "mine.toml").write_text(rows)
    for verb in ("list", "compile"):
        status, line = fails(capsys, "rules", verb, "--config", f"{site}/site.toml")
        assert status == 2
        assert f"{site}/rules.d/mine.toml: " in line
        assert "mend the row, or move the file away" in line


def test_unknown_jobs_nodes_and_runs_are_status_1(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    config = ("--config", f"{site}/site.toml")
    for arguments, words in (
        (("report", "43"), "job 43 is unknown here"),
        (("report", "42_1"), "`nccl-slurm status` says whether the daemon runs"),
        (("report", "42", "--run", "2"), "job 42 has no run 2; --run takes 1"),
        (("prompt", "42", "--run", "2"), "job 42 has no run 2; --run takes 1"),
        (("repro", "42", "--run", "2"), "job 42 has no run 2; --run takes 1"),
        (("repro", "42"), "the run is pending, nothing is judged yet; ask again when it has a report"),
        (("nodes", "n9"), "node n9: never seen; `nccl-slurm nodes` lists those that were"),
    ):
        status, line = fails(capsys, *arguments, *config)
        assert status == 1
        assert words in line


def test_a_job_that_still_runs_has_a_report_without_a_verdict(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    nccl_slurm(["report", "42", "--config", f"{site}/site.toml"])
    assert capsys.readouterr().out.startswith("Not judged yet (pending)")
    nccl_slurm(["prompt", "42", "--config", f"{site}/site.toml"])
    assert "\njob| id: 42\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["jobs"], ["nodes"], ["status"], ["report", "42"]])
def test_no_store_on_this_host(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "c.toml").write_text(f'[paths]\nstate = "{tmp_path}/absent"\n')
    status, line = fails(capsys, *command, "--config", f"{tmp_path}/c.toml")
    assert status == 1
    assert f"{tmp_path}/absent/store.db: no store on this host; run this where `nccl-slurm daemon` runs" in line


def test_a_shared_folder_that_is_not_mounted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'[paths]\nstate = "{tmp_path}/a"\nshared = "{tmp_path}/b"\n')
    status, line = fails(capsys, "report", "42", "--config", f"{tmp_path}/c.toml")
    assert status == 1
    assert f"{tmp_path}/b/reports: no such folder on this host; mount it" in line


def test_a_job_without_a_published_report(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    (site / "state" / "store.db").unlink()
    for arguments, words in (
        (("42",), "job 42 has no report"),
        (("42", "--run", "3"), "run 3 of job 42 has no report"),
    ):
        status, line = fails(capsys, "report", *arguments, "--config", f"{site}/site.toml")
        assert status == 1
        assert words in line
    (site / "shared" / "reports" / "42.json").write_text("{")
    assert "can't be read" in fails(capsys, "report", "42", "--config", f"{site}/site.toml")[1]


@pytest.mark.parametrize("damage", ["update meta set value = 99", None])
def test_a_store_that_this_version_can_not_read(
    capsys: pytest.CaptureFixture[str], site: Path, damage: str | None
) -> None:
    path = site / "state" / "store.db"
    if damage is None:
        path.write_bytes(b"no database at all" * 100)
    else:
        with sqlite3.connect(path) as opened:
            opened.execute(damage)
        opened.close()
    status, line = fails(capsys, "jobs", "--config", f"{site}/site.toml")
    assert status == 1
    assert ("is damaged" if damage is None else "upgrade nccl-slurm on this host") in line


def test_a_database_server_that_is_away_gets_a_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pymysql")
    file = tmp_path / "c.toml"
    file.write_text('[store]\nurl = "mysql+pymysql://u@127.0.0.1:1/x"\n[paths]\nstate = "/nonexistent"\n')
    if os.geteuid() != 0:
        pytest.skip("root alone needs no password file")
    status, line = fails(capsys, "status", "--config", str(file))
    assert status == 1
    assert "see that store.url in nccl-slurm.toml is right" in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "no such file or folder; give --logs a folder or file of logs"),
        ("file/below", "no such file or folder"),
        ("empty", "holds no log to read, every file is empty or skipped; give the folder with the ranks' logs"),
        ("only-empty", "holds no log to read"),
        ("pipe", "pipe: no regular file, not read"),
    ],
)
def test_logs_that_can_not_be_read_are_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "file").write_text("x\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "only-empty").mkdir()
    (tmp_path / "only-empty" / "a.log").touch()
    os.mkfifo(tmp_path / "pipe")
    status, line = fails(capsys, "report", "--logs", str(tmp_path / name))
    assert status == 1
    assert words in line


def as_nobody(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit status and standard error of the command, run by a user who is nobody's friend."""
    assert LOADED_BEFORE
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        _become_nobody(lambda: nccl_slurm(arguments))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _become_nobody(work: Callable[[], Any]) -> NoReturn:
    try:
        os.chdir("/")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        work()
    except SystemExit as left:
        os._exit(int(str(left.code or 0)))
    finally:
        os._exit(99)


@pytest.fixture
def closed_site(site: Path) -> Path:
    """As on a cluster: the store is root's, the way to the published reports is open."""
    for folder in (site, *list(site.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    (site / "site.toml").chmod(0o644)
    (site / "state").chmod(0o750)
    (site / "shared" / "reports").chmod(0o711)
    report = build(Evidence(job=RunRow("lab", 42, 1, "42").as_job()), None, (), "pending")
    file = site / "shared" / "reports" / published_name("42")
    file.write_text(json.dumps(report))
    file.chmod(0o600)
    return site


@needs_root
def test_what_is_not_yours_is_status_3(closed_site: Path) -> None:
    config = ["--config", f"{closed_site}/site.toml"]
    for arguments, words in (
        (["report", "42"], "job 42 is not yours: its report is for its owner and the admins; ask one of them"),
        (["prompt", "42"], "job 42 is not yours: its report is for its owner and the admins; ask one of them"),
        (["repro", "42"], "job 42 is not yours: its report is for its owner and the admins; ask one of them"),
        (["bundle", "42"], "job 42 is not yours: its report is for its owner and the admins; ask one of them"),
        (["jobs"], "the store is for admins (root, the daemon's user); `nccl-slurm report JOBID` shows"),
        (["nodes"], "the store is for admins"),
        (["status"], "the store is for admins"),
    ):
        status, said = as_nobody([*arguments, *config])
        assert (status, words in _one_line(said)) == (3, True), said


@needs_root
def test_reports_that_are_not_published_are_for_admins(closed_site: Path) -> None:
    file = closed_site / "site.toml"
    file.write_text(f'[paths]\nstate = "{closed_site}/state"\n')
    status, said = as_nobody(["report", "42", "--config", str(file)])
    assert status == 3
    assert f"{file}: paths.shared is empty, so reports are not published; ask an admin" in _one_line(said)


@needs_root
def test_logs_that_are_closed_to_the_user(closed_site: Path) -> None:
    logs = closed_site / "logs"
    logs.mkdir(mode=0o700)
    (logs / "a.log").write_text("x\n")
    status, said = as_nobody(["report", "--logs", str(logs)])
    assert (status, "not readable for you; ask its owner" in _one_line(said)) == (1, True)
    status, said = as_nobody(["report", "--logs", str(logs / "a.log")])
    assert (status, "a folder above it is closed to you; ask its owner" in _one_line(said)) == (1, True)


def daemon(config: Path, *options: str) -> tuple[int, str]:
    """In a process of its own: it sets signal handlers."""
    command = [sys.executable, "-m", "nccl_slurm.cli.main", "daemon", *options, "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_slurm_that_does_not_answer(site: Path) -> None:
    (site / "site.toml").write_text(_toml(site, f'[slurm]\nbin = "{site}/bin"\ntimeout_s = 5\n'))
    status, said = daemon(site / "site.toml", "--once")
    assert status == 1
    assert "can't be run: No such file or directory; set slurm.bin to the folder of Slurm's commands" in _one_line(said)
    (site / "bin").mkdir()
    scontrol = site / "bin" / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    status, said = daemon(site / "site.toml", "--once")
    assert status == 1
    assert "Unable to contact slurm controller; see that Slurm is up" in _one_line(said)


@pytest.mark.parametrize("options", [["--once"], ["--foreground"], []])
def test_a_second_daemon_says_so_where_it_is_started(site: Path, options: list[str]) -> None:
    with open(site / "state" / "daemon.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, said = daemon(site / "site.toml", *options)
    assert status == 1
    assert "daemon.lock: another nccl-slurm daemon holds it; stop that one first" in _one_line(said)


def test_a_store_that_is_held_by_another_process(site: Path) -> None:
    holder = sqlite3.connect(site / "state" / "store.db", isolation_level=None)
    holder.execute("begin immediate")
    status, said = daemon(site / "site.toml", "--once")
    holder.close()
    assert status == 1
    assert "is held by another process; try again" in _one_line(said)


def test_a_state_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "c.toml").write_text(f'[paths]\nstate = "{tmp_path}/file/state"\n')
    status, said = daemon(tmp_path / "c.toml", "--once")
    assert status == 1
    assert "create it for the daemon's user, or set paths.state" in _one_line(said)


def test_an_admin_group_that_does_not_exist(site: Path) -> None:
    (site / "site.toml").write_text(_toml(site, '[access]\nadmin_group = "no-such-group"\n'))
    status, said = daemon(site / "site.toml", "--once")
    assert status == 2
    assert "access.admin_group: no group 'no-such-group' here; make it, or empty the key" in _one_line(said)


@needs_root
def test_the_store_goes_to_the_admin_group(site: Path) -> None:
    (site / "site.toml").write_text(_toml(site, f'[access]\nadmin_group = "tty"\n[slurm]\nbin = "{site}/bin"\n'))
    daemon(site / "site.toml", "--once")
    state = site / "state"
    assert {state.stat().st_gid, (state / "store.db").stat().st_gid} == {grp.getgrnam("tty").gr_gid}
    assert (state / "store.db").stat().st_mode & 0o777 == 0o640


def test_a_fault_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_path: str | None) -> NoReturn:
        raise RuntimeError("bad\x1b[31m\nthing")

    monkeypatch.setattr("nccl_slurm.config.load", broken)
    with pytest.raises(SystemExit) as left:
        nccl_slurm(["jobs"])
    said = capsys.readouterr().err
    assert left.value.code == 1
    assert said.startswith(r"nccl-slurm: internal error: RuntimeError: bad\x1b[31m\nthing; NCCL_SLURM_TRACEBACK=1")
    assert said.count("\n") == 1


def test_every_error_has_a_documented_status() -> None:
    assert {status for _, status in main.EXIT_STATUS} == {1, 2, 3}
    assert next(status for kind, status in main.EXIT_STATUS if issubclass(NotYours, kind)) == 3


def test_the_log_of_a_daemon_in_the_background_has_times() -> None:
    """Under systemd the journal has them."""
    program = (
        "import logging; from nccl_slurm.cli.daemon import _log_to_stderr as log; log(stamped={}); logging.info('x')"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program.format(stamped)], capture_output=True, text=True, check=True
        ).stderr
        for stamped in (True, False)
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO root: x\n", said[0])
    assert said[1] == "INFO root: x\n"


@pytest.mark.parametrize(("started", "changed"), [(None, False), (-100, True), (100, False)])
def test_settings_that_the_daemon_has_not_read(
    site: Path, capsys: pytest.CaptureFixture[str], started: int | None, changed: bool
) -> None:
    file = site / "site.toml"
    with Store.open(f"sqlite:///{site}/state/store.db") as store:
        if started is not None:
            store.set_value("started", int(file.stat().st_mtime) + started)
    for words in ((), ("--json",)):
        nccl_slurm(["status", "--config", str(file), *words])
    out = capsys.readouterr().out
    assert (", changed since the daemon started: restart it\n" in out) is changed
    assert f'"config_changed": {"true" if changed else "false"}' in out


def test_a_file_that_is_no_log_is_as_wrong_as_an_empty_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "ls").write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 200)
    status, line = fails(capsys, "report", "--logs", str(tmp_path / "ls"))
    assert status == 1
    assert "holds no log to read, every file is empty or skipped (ls: a program or core dump (ELF)" in line
