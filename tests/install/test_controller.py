"""install.sh --controller on a tree that stands for a controller's disk, with wheels in place of a package index."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm import config
from nccl_slurm.errors import InputError
from nccl_slurm.install.options import parse
from nccl_slurm.parse.patterns import load_rows
from tests.install.staging import Installer, snapshot

SHARED = "/fsx/nccl-slurm"
FOLDERS = {"": 0o755, "/tmp": 0o700, "/new": 0o700, "/quarantine": 0o700, "/reports": 0o711}


@pytest.fixture(scope="module")
def installed(frozen: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    """Once for all tests that only look: an environment takes seconds."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = tmp_path_factory.mktemp("controller") / "root"
    (root / "fsx").mkdir(parents=True)
    installer = Installer(frozen, root)
    told = installer(*options(wheels), "--dry-run", "--verbose").stdout
    assert set(snapshot(root)) == {"fsx"}
    installer(*options(wheels))
    named = {line.rpartition(" ")[2].lstrip("/") for line in told.splitlines()}
    made = {path for path in snapshot(root) if "/venv/" not in path and path != "fsx"}
    assert made <= named
    yield installer


def options(wheels: Path) -> tuple[str, ...]:
    return (
        "--controller",
        "--shared",
        SHARED,
        "--slurm-user",
        "nobody",
        "--slurm-bin",
        "/usr/bin",
        "--wheels",
        str(wheels),
    )


def test_a_second_run_changes_nothing(installed: Installer, wheels: Path) -> None:
    before = snapshot(installed.root, times=True)
    done = installed(*options(wheels))
    assert "nothing changed" in done.stdout
    assert "next: ./install.sh --check" in done.stdout
    after = snapshot(installed.root, times=True)
    assert {path for path in after if after[path] != before.get(path) and "__pycache__" not in path} == set()


def test_the_command_runs(installed: Installer) -> None:
    program = installed.at("/opt/nccl-slurm/venv/bin/nccl-slurm")
    assert program.read_text().startswith("#!/opt/nccl-slurm/venv/bin/python")
    assert os.readlink(installed.at("/usr/local/bin/nccl-slurm")) == "/opt/nccl-slurm/venv/bin/nccl-slurm"
    python = installed.at("/opt/nccl-slurm/venv/bin/python")
    command = [str(python), "-I", "-m", "nccl_slurm.cli.main", "config", "show"]
    toml = installed.at("/etc/nccl-slurm/nccl-slurm.toml")
    done = subprocess.run([*command, "--config", str(toml)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SHARED in done.stdout


def test_the_configuration_has_the_places(installed: Installer) -> None:
    loaded = config.load(str(installed.at("/etc/nccl-slurm/nccl-slurm.toml")))
    assert loaded.paths.shared == SHARED
    assert loaded.paths.events == "/var/spool/nccl-slurm/events"
    assert loaded.daemon.record_uids == [0]
    capture = installed.at("/etc/nccl-slurm/capture.conf").read_text()
    assert f"\nNCCL_SLURM_SHARED={SHARED}\n" in capture


def test_folders_have_their_owners(installed: Installer) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    for part, mode in FOLDERS.items():
        info = installed.at(SHARED + part).stat()
        assert (info.st_mode & 0o7777, info.st_uid) == (mode, 0), part
    for part in ("", "/new", "/tmp"):
        info = installed.at(f"/var/spool/nccl-slurm/events{part}").stat()
        assert (info.st_mode & 0o7777, info.st_uid) == (0o700, nobody), part
    assert installed.at("/var/lib/nccl-slurm").stat().st_mode & 0o7777 == 0o750


def test_nodes_find_compiled_rows(installed: Installer) -> None:
    own, shared = installed.at("/opt/nccl-slurm/patterns.json"), installed.at(f"{SHARED}/patterns.json")
    assert own.read_bytes() == shared.read_bytes()
    assert len(load_rows(str(own)).rows) > 50


def test_the_unit_may_write_the_shared_folder(installed: Installer) -> None:
    lines = installed.at("/etc/systemd/system/nccl-slurm.service").read_text().splitlines()
    assert f"ReadWritePaths=-{SHARED}" in lines
    assert "ExecStart=/opt/nccl-slurm/venv/bin/nccl-slurm daemon --foreground" in lines


def test_the_unit_is_such_as_systemd_takes(installed: Installer) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("not installed: systemd-analyze")
    unit = installed.at("/etc/systemd/system/nccl-slurm.service")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    # The program lies below the tree, and so does the manual.
    assert [line for line in done.stderr.splitlines() if not re.search(r"is not executable|man nccl-slurm", line)] == []


def test_logrotate_takes_its_file(installed: Installer) -> None:
    rotated = installed.at("/etc/logrotate.d/nccl-slurm").read_text()
    assert "/var/lib/nccl-slurm/daemon.log {" in rotated


def test_a_node_on_the_same_host_shares_what_both_have(installed: Installer, wheels: Path) -> None:
    before = snapshot(installed.root)
    installed("--node")
    installed("--uninstall", "--node", "--slurm-is-gone")
    after = snapshot(installed.root)
    assert {path for path in before if path not in after} == set()
    assert {path for path in after if path not in before} == set()


def test_records_that_wait_hold_it_back_then_all_goes(installed: Installer, wheels: Path) -> None:
    """Last: it takes the module's installation away."""
    waiting = installed.at(f"{SHARED}/new/7.1700000000.n1.json")
    waiting.write_text("{}")
    done = installed("--uninstall", "--slurm-is-gone", check=False)
    assert done.returncode == 1
    assert f"not handed over: {waiting}" in done.stderr
    assert installed.at("/usr/local/bin/nccl-slurm").is_symlink()
    installed("--uninstall", "--slurm-is-gone", "--discard-records")
    assert set(snapshot(installed.root)) == {"fsx"}


def test_what_is_next_has_the_places_that_were_given(installer: Installer) -> None:
    places = ("--prefix", "/a", "--hooks", "/b", "--conf", "/c", "--slurm-conf", "/d/slurm.conf")
    told = installer("--controller", "--slurm-user", "nobody", *places, "--dry-run").stdout
    assert "next: ./install.sh --check --prefix /a --hooks /b --conf /c --slurm-conf /d/slurm.conf\n" in told


def test_root_squash_gives_the_folders_to_the_shipping_user(installer: Installer, tmp_path: Path) -> None:
    told = installer(
        "--controller", "--shared", SHARED, "--slurm-user", "nobody", "--ship-user", "nobody", "--dry-run"
    ).stdout
    uid = pwd.getpwnam("nobody").pw_uid
    for part in ("tmp", "new", "quarantine"):
        assert f"folder 0700 {uid}:{pwd.getpwnam('nobody').pw_gid} {SHARED}/{part}" in told
    assert f"compile: pattern rows to {SHARED}" not in told


@pytest.mark.parametrize(
    ("option", "environment", "remedy"),
    [
        ("--wheels", {}, "--wheels /nonexistent/x: no such folder; `pip wheel -w DIR CHECKOUT` makes it"),
        ("--slurm-conf", {}, "--slurm-conf /nonexistent/x: no such file (SLURM_CONF counts where it is not given)"),
        ("", {"SLURM_CONF": "/nonexistent/x"}, "--slurm-conf /nonexistent/x: no such file"),
    ],
)
def test_what_is_only_read_has_to_be_there(
    monkeypatch: pytest.MonkeyPatch, option: str, environment: dict[str, str], remedy: str
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    words = ["--controller", "--shared", "/x/shared", "--dry-run", *([option, "/nonexistent/x"] if option else [])]
    with pytest.raises(InputError) as told:
        parse(words)
    assert remedy in str(told.value)


def test_without_wheels_or_index_it_says_what_to_do(installer: Installer, tmp_path: Path) -> None:
    done = installer("--controller", "--slurm-user", "nobody", "--wheels", str(tmp_path), check=False)
    assert done.returncode == 1
    assert "give --wheels DIR" in done.stderr
    assert "stopped after" in done.stdout
    installer("--uninstall", "--slurm-is-gone")
    assert snapshot(installer.root) == {}
