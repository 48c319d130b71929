"""The scratch folder of root's test clusters and demo, where a user was there first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import demo
from tests.cluster.harness import Cluster
from tests.cluster.scratch import USERS, make_folders, open_to_others

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ALICE = USERS["alice"]


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """As /var/tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def alices_folder(place: Path) -> None:
    (place / "etc").mkdir(parents=True)
    for path in (place, place / "etc"):
        os.chown(path, ALICE, ALICE)


def folder_for_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o1777)


def alices_link(place: Path) -> None:
    victim = place.parent / "victim"
    victim.mkdir(mode=0o700)
    place.symlink_to(victim)
    os.lchown(place, ALICE, ALICE)


def roots_link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to(place.parent / "elsewhere")


@pytest.mark.parametrize("spoil", [alices_folder, folder_for_all, alices_link, roots_link])
def test_a_demo_in_what_a_user_made_is_refused(
    sticky: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = sticky / "nccl-slurm-demo"
    spoil(place)
    before = {path: path.lstat() for path in sticky.rglob("*")}
    monkeypatch.setattr(demo, "SCRATCH", place)
    monkeypatch.setattr(Cluster, "_check_machine", lambda cluster: None)
    for how in ("--without-torch", "--stop"):
        assert demo.main([how]) == 1
        assert f"demo: {place} is not root's alone" in capsys.readouterr().err
    after = {path: path.lstat() for path in sticky.rglob("*")}
    assert {path: (info.st_uid, info.st_mode, info.st_ctime_ns) for path, info in after.items()} == {
        path: (info.st_uid, info.st_mode, info.st_ctime_ns) for path, info in before.items()
    }


def test_what_is_safe_and_what_is_not(sticky: Path, tmp_path: Path) -> None:
    place = sticky / "lab"
    assert open_to_others(place) is None
    place.mkdir()
    assert open_to_others(place) is None and open_to_others(place / "deep" / "er") is None
    (tmp_path / "link").symlink_to(sticky)
    assert open_to_others(tmp_path / "link" / "lab") is None
    sticky.chmod(0o777)
    assert open_to_others(place) == sticky
    assert open_to_others(tmp_path / "link" / "lab") == sticky
    os.lchown(tmp_path / "link", ALICE, ALICE)
    assert open_to_others(tmp_path / "link" / "lab") == tmp_path / "link"


def test_a_link_among_the_folders_gives_nothing_away(tmp_path: Path) -> None:
    """slurm's own user may have left it in a folder of its own."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    scratch = tmp_path / "lab"
    (scratch / "events").mkdir(parents=True)
    (scratch / "events" / "new").symlink_to(victim)
    with pytest.raises(OSError):
        make_folders(scratch, ["n1"])
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o700)
