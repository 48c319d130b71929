"""The SPANK plugin's way onto a host: built where that can be, told where not, and never in the way of the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nccl_slurm.install import spank
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.slurmconf import SlurmConfig
from tests.install.staging import Installer, snapshot

FOLDER = "/opt/nccl-slurm/slurm/spank"
HEADERS = Path("/usr/include/slurm/spank.h")
needs_headers = pytest.mark.skipif(
    not HEADERS.exists() or not shutil.which("make") or not shutil.which("cc"), reason="needs make, cc, libslurm-dev"
)


@needs_headers
def test_it_is_built_for_the_slurm_of_this_host_and_one_of_another_release_stays(installer: Installer) -> None:
    prebuilt = installer.source / "slurm" / "spank" / "nccl_slurm-24.11.so"
    prebuilt.write_bytes(b"\x7fELF")
    installer("--node")
    names = sorted(path.name for path in installer.at(FOLDER).iterdir())
    assert len(names) == 2 and names[1] == prebuilt.name
    prebuilt.unlink()
    before = snapshot(installer.root, times=True)
    done = installer("--node")
    assert "nothing changed" in done.stdout and snapshot(installer.root, times=True) == before
    installer("--uninstall", "--slurm-is-gone")
    assert not installer.at(FOLDER).exists()


def test_why_it_is_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spank, "_PATH", str(tmp_path))
    assert spank.plugins()[1] == "no make and no cc here"
    monkeypatch.setattr(spank, "_SOURCE", str(tmp_path))
    assert spank.plugins() == ({}, "its source is not in this checkout")


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("cc"), reason="needs make and cc")
def test_why_it_is_not_built_without_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that finds none."""
    source = tmp_path / "spank"
    shutil.copytree(spank._SOURCE, source, ignore=shutil.ignore_patterns("*.so"))
    makefile = (source / "Makefile").read_text().replace("CC ?= cc", "CC = cc -nostdinc")
    (source / "Makefile").write_text(makefile)
    monkeypatch.setattr(spank, "_SOURCE", str(source))
    found, why = spank.plugins()
    assert found == {} and why.startswith("no slurm/spank.h")


def test_the_line_for_plugstack_conf(tmp_path: Path) -> None:
    config = SlurmConfig(release=(22, 5), path=str(tmp_path / "slurm.conf"))
    line = f"optional {FOLDER}/nccl_slurm-22.05.so spool=/data/spool"
    told = spank.advice(config, Layout(), "/data/spool", "")
    assert told.endswith(f" in {tmp_path}/plugstack.conf on all hosts: {line}")
    elsewhere = spank.advice(config, Layout(conf="/srv/etc"), "/data/spool", "")
    assert elsewhere.endswith(f": {line} conf=/srv/etc/capture.conf")
    (tmp_path / "plugstack.conf").write_text(f"# {line}\n")
    assert spank.advice(config, Layout(), "/data/spool", "") == told
    (tmp_path / "plugstack.conf").write_text(line + "\n")
    assert spank.advice(config, Layout(), "/data/spool", "").endswith("names the SPANK plugin already")
    assert " on n[1-2]: how tasks end is not known" in spank.advice(config, Layout(), "/data/spool", "n[1-2]")


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("nccl_slurm-24.11.so", True),
        ("nccl_slurm-24.11.so.bak", False),
        ("../nccl_slurm-24.11.so", False),
        ("x", False),
    ],
)
def test_what_counts_as_a_plugin(path: str, stays: bool) -> None:
    assert spank.is_plugin(f"{FOLDER}/{path}", Layout()) is stays
