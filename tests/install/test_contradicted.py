"""A configuration file that says otherwise than what is asked for: nothing changes, and the line to write is named."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest

from tests.install.staging import CHECKOUT, Installer, snapshot

CAPTURE, DAEMON = "/etc/nccl-slurm/capture.conf", "/etc/nccl-slurm/nccl-slurm.toml"
SHARED = "/fsx/nccl-slurm"
NOBODY = pwd.getpwnam("nobody").pw_uid
CONTROLLER = ("--controller", "--slurm-user", "nobody")


def settings(installer: Installer, **toml: str) -> None:
    """Files of an earlier installation; ``toml``: key → text of its value."""
    installer.at(CAPTURE).parent.mkdir(parents=True)
    installer.at(CAPTURE).write_text(f"NCCL_SLURM_SHARED={SHARED}\n")
    text = (CHECKOUT / "etc" / "nccl-slurm.toml").read_text()
    for key, value in {"shared": f'"{SHARED}"', **toml}.items():
        text, count = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
        assert count == 1
    installer.at(DAEMON).write_text(text)


def refused(installer: Installer, *options: str, **env: str) -> str:
    """What it says; nothing is touched by it."""
    before = snapshot(installer.root, times=True)
    done = installer(*options, check=False, **env)
    assert done.returncode == 1
    assert "nothing was changed:" in done.stderr
    assert snapshot(installer.root, times=True) == before
    return done.stderr


def test_a_shipping_user_that_neither_file_knows(installer: Installer) -> None:
    settings(installer)
    told = refused(installer, *CONTROLLER, "--ship-user", "nobody")
    assert f"{CAPTURE} stays as it is: set NCCL_SLURM_SHIP_UID={NOBODY} there yourself" in told
    assert f"{DAEMON} stays as it is: set daemon.record_uids = [0, {NOBODY}] there yourself" in told


def test_a_node_is_left_alone_too(installer: Installer) -> None:
    settings(installer)
    assert "NCCL_SLURM_SHIP_UID=" in refused(installer, "--node", "--ship-user", "nobody")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--shared", "/fsx/other"), 'paths.shared = "/fsx/other"'),
        (("--spool", "/local/spool"), 'paths.events = "/local/spool/events"'),
        (("--slurm-conf", "/opt/slurm/etc/slurm.conf"), 'slurm.conf = "/opt/slurm/etc/slurm.conf"'),
    ],
)
def test_each_option_that_the_daemons_file_contradicts(
    installer: Installer, options: tuple[str, ...], line: str
) -> None:
    settings(installer)
    if options[0] == "--spool":
        installer.at(CAPTURE).write_text(f"NCCL_SLURM_SHARED={SHARED}\nNCCL_SLURM_EVENTS=/local/spool/events\n")
    assert f"{DAEMON} stays as it is: set {line} there yourself" in refused(installer, *CONTROLLER, *options)


def test_slurms_commands_from_another_folder(installer: Installer, tmp_path: Path) -> None:
    settings(installer)
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    told = refused(installer, *CONTROLLER, "--slurm-bin", str(tmp_path))
    assert f'set slurm.bin = "{tmp_path}" there yourself' in told


def test_the_environments_slurm_conf_is_asked_for_too(installer: Installer) -> None:
    settings(installer)
    told = refused(installer, *CONTROLLER, SLURM_CONF="/opt/slurm/etc/slurm.conf")
    assert 'set slurm.conf = "/opt/slurm/etc/slurm.conf" there yourself' in told


def test_the_same_in_other_words_is_no_contradiction(installer: Installer) -> None:
    settings(installer, shared=f"'{SHARED}/'", conf="'/a/slurm.conf'", record_uids=f"[{NOBODY},0]")
    with installer.at(CAPTURE).open("a") as file:
        file.write(f"NCCL_SLURM_SHIP_UID={NOBODY}\n")
    installer(*CONTROLLER, "--ship-user", "nobody", "--slurm-conf", "/a/slurm.conf", "--dry-run")


def stopped_at_the_environment(installer: Installer, tmp_path: Path, *options: str, **env: str) -> None:
    """All but the Python environment is made: there is nothing to make it of."""
    done = installer(*CONTROLLER, *options, "--wheels", str(tmp_path), check=False, **env)
    assert done.returncode == 1 and "give --wheels DIR" in done.stderr


def test_the_environments_slurm_conf_reaches_the_daemon(installer: Installer, tmp_path: Path) -> None:
    stopped_at_the_environment(installer, tmp_path, SLURM_CONF="/opt/slurm/etc/slurm.conf")
    assert '\nconf = "/opt/slurm/etc/slurm.conf" ' in installer.at(DAEMON).read_text()


def test_a_run_that_does_not_name_the_shipping_user_keeps_its_folders(installer: Installer, tmp_path: Path) -> None:
    """And the rows in SHARED, which nodes read."""
    settings(installer, record_uids=f"[0,{NOBODY}]")
    with installer.at(CAPTURE).open("a") as file:
        file.write(f"NCCL_SLURM_SHIP_UID={NOBODY}\n")
    rows = installer.at(f"{SHARED}/patterns.json")
    rows.parent.mkdir(parents=True)
    rows.write_text("{}")
    installer.at("/etc/nccl-slurm/installed.controller").write_text(f"file {SHARED}/patterns.json\n")
    os.chown(rows.parent, NOBODY, -1)
    stopped_at_the_environment(installer, tmp_path)
    assert rows.read_text() == "{}"
    assert {installer.at(f"{SHARED}/{part}").stat().st_uid for part in ("new", "tmp", "reports")} == {NOBODY}
