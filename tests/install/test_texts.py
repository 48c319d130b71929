"""Values in the shipped files, units' calls, and the list of what was made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nccl_slurm import config
from nccl_slurm.install import daemonconf, manifest, plan, settings, units
from nccl_slurm.install.layout import Layout
from tests.install.staging import CHECKOUT

CAPTURE = (CHECKOUT / "etc" / "capture.conf").read_text()
DAEMON = (CHECKOUT / "etc" / "nccl-slurm.toml").read_text()
UNIT = (CHECKOUT / "etc" / "systemd" / "nccl-slurm.service").read_text()


def test_values_stand_where_the_key_was_commented_out() -> None:
    text = settings.fill_sh(CAPTURE, {"NCCL_SLURM_SHARED": "/fsx/x", "NCCL_SLURM_SPOOL": "/var/spool/nccl-slurm"})
    assert [line for line in text.splitlines() if line[:1] not in ("#", "")] == ["NCCL_SLURM_SHARED=/fsx/x"]
    assert settings.sh_keys(text) == settings.sh_keys(CAPTURE)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NCCL_SLURM_SPOOL=/a", "/a"),
        ("NCCL_SLURM_SPOOL='/a b' # here", "/a b"),
        ("NCCL_SLURM_SPOOL=", ""),
        ("#NCCL_SLURM_SPOOL=/a", None),
        ("NCCL_SLURM_SPOOL=/a/$SLURMD_NODENAME", settings.UNTOLD),
        ("NCCL_SLURM_SPOOL=`pwd`", settings.UNTOLD),
        ("NCCL_SLURM_SPOOL='/a", settings.UNTOLD),
        ("NCCL_SLURM_SPOOL=/a\nNCCL_SLURM_SPOOL=/b", "/b"),
    ],
)
def test_what_a_capture_conf_says(line: str, value: str | None) -> None:
    assert settings.sh_value(line + "\n", "NCCL_SLURM_SPOOL") == value


def test_toml_gets_its_values_and_is_read_by_the_daemon() -> None:
    text = settings.fill_toml(DAEMON, {"paths.shared": '"/fsx/x"', "daemon.record_uids": "[0, 64]"})
    loaded = config.loads(text, "test")
    assert (loaded.paths.shared, loaded.daemon.record_uids) == ("/fsx/x", [0, 64])
    assert settings.toml_value(text, "paths.shared") == '"/fsx/x"'
    assert settings.toml_value(text, "scope.partitions.debug") is None
    assert {"paths.shared", "slurm.bin", "rules.folder"} <= settings.toml_keys(DAEMON)


def test_a_unit_of_another_place_names_it_alone() -> None:
    text = units.daemon_unit(UNIT, Layout("/a", "/b", "/c"), "/fsx/x", "/d/events")
    assert "ExecStart=/a/venv/bin/nccl-slurm daemon --config /c/nccl-slurm.toml --foreground" in text.splitlines()
    assert "ReadWritePaths=-/fsx/x" in text.splitlines()
    assert "ReadWritePaths=-/d/events" in text.splitlines()
    assert "/opt/nccl-slurm" not in text


@pytest.mark.parametrize(
    ("status", "out", "told", "errors", "warnings"),
    [
        (0, "warning: f: paths.shared: empty\nf: good\n", "", (), ("f: paths.shared: empty",)),
        (2, "error: f: record_uids: lacks 7\n", "nccl-slurm: f: 1 error\n", ("f: record_uids: lacks 7",), ()),
        (2, "", "nccl-slurm: f: no such key\n", ("nccl-slurm config check: nccl-slurm: f: no such key",), ()),
    ],
)
def test_what_config_check_says(
    status: int, out: str, told: str, errors: tuple[str, ...], warnings: tuple[str, ...]
) -> None:
    assert daemonconf._read(status, out, told) == daemonconf.Checked(errors, warnings)


def test_the_installed_config_check_is_asked(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    python.chmod(0o755)
    layout = Layout(prefix=str(tmp_path), conf=str(tmp_path))
    assert daemonconf.checked(Layout(prefix=str(tmp_path / "nothing"))) == daemonconf.Checked()
    Path(layout.daemon_conf).write_text('[paths]\nshared = "/fsx/x"\n')
    Path(layout.capture_conf).write_text("NCCL_SLURM_SHARED=/fsx/x\nNCCL_SLURM_SHIP_UID=7\n")
    found = daemonconf.checked(layout)
    assert any("daemon.record_uids: lacks 7" in one for one in found.errors)


def test_the_command_reads_the_settings_of_its_installation(tmp_path: Path) -> None:
    entry = plan._command(Layout("/a", "/b", "/c"))
    script = tmp_path / "nccl-slurm"
    script.write_text(entry.content.decode().replace("/a/venv/bin/nccl-slurm", "/usr/bin/env"))
    for env, told in (({}, "/c/nccl-slurm.toml"), ({"NCCL_SLURM_CONFIG": "/mine"}, "/mine")):
        done = subprocess.run(["sh", str(script)], env=env, capture_output=True, text=True, check=True)
        assert f"NCCL_SLURM_CONFIG={told}" in done.stdout.splitlines()
    assert plan._command(Layout()).kind == "link"


NODE = units.NAMES["node"]


@pytest.mark.parametrize(
    ("enabled", "active", "changed", "due"),
    [
        ((), (), ("/etc/systemd/system/x.timer",), [["daemon-reload"], *(["enable", "--now", name] for name in NODE)]),
        (NODE, NODE[1:], (), []),
        (NODE, (), (), [["start", NODE[1]]]),
        (NODE, NODE[1:], ("/opt/x.py",), []),
    ],
)
def test_units_of_a_node(
    enabled: tuple[str, ...], active: tuple[str, ...], changed: tuple[str, ...], due: list[list[str]]
) -> None:
    assert units.calls("node", enabled, active, changed) == due


def test_the_daemon_starts_anew_on_new_code_only() -> None:
    name = units.NAMES["controller"]
    assert units.calls("controller", name, name, ()) == []
    assert units.calls("controller", name, name, ("/opt/x.py",)) == [["restart", *name]]


def test_a_list_is_read_as_written_and_strange_lines_are_left_out() -> None:
    kinds = {"/a/b": "file", "/a": "folder", "/c": "data"}
    assert manifest.parse_manifest(manifest.format_manifest(kinds)) == kinds
    assert manifest.parse_manifest("tree ../etc\ntree /a/../etc\nnonsense /x\n\n") == {}
