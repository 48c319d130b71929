"""Where another release's packages come from, and that what is broken counts as absent. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster import releases
from tests.cluster.client import ClusterError
from tests.cluster.releases import Root, read_sources

SOURCES = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 Suites: none

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main
"""
LIST = """\
# deb http://old.example/debian bookworm main
deb-src http://sources.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian bookworm main contrib
deb http://plain.example/debian bookworm-updates main
"""


def test_apt_sources_of_the_newer_form() -> None:
    (entry,) = read_sources(SOURCES)
    assert entry["uris"].split()[0] == "http://mirror.example/debian"
    assert (entry["suites"], entry["signed-by"]) == ("bookworm bookworm-updates", "")


def test_apt_sources_of_one_line_each() -> None:
    signed, plain = read_sources(LIST)
    assert signed == {
        "uris": "http://mirror.example/debian",
        "suites": "bookworm",
        "components": "main contrib",
        "signed-by": "/usr/share/keyrings/a.gpg",
    }
    assert (plain["uris"], plain["signed-by"]) == ("http://plain.example/debian", "")


def test_an_unknown_release_is_refused_with_those_that_are_known() -> None:
    assert releases.missing("21.08") == "no suite is known that has Slurm 21.08 (known: 24.11, 26.05)"
    with pytest.raises(ClusterError, match=r"^Slurm 21\.08: no suite"):
        releases.find("21.08")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_is_absent_or_half_there_does_not_work(tmp_path: Path) -> None:
    root = Root("24.11", tmp_path / "24.11")
    assert not root.works()
    for name in ("bin", "root/usr", "root/usr/local", "root/etc/alternatives"):
        (root.folder / name).mkdir(parents=True)
    assert not root.works()
