"""Folders that a user owns, or could put another one in the place of: root writes into none of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.errors import InputError
from nccl_slurm.install.places import check_events, check_shared, check_spool
from tests.install.staging import Installer, snapshot

USER = 7001


@pytest.fixture
def top() -> Iterator[Path]:
    """Below folders of root alone, but for the sticky one of all."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-places-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def shared(path: Path, *owners: int) -> None:
    check_shared(str(path), str(path), owners or (0,))


def test_what_root_alone_can_change_is_taken(top: Path) -> None:
    (top / "shared").mkdir()
    shared(top / "shared")
    shared(top / "not" / "yet")


def test_a_shared_folder_of_a_user(top: Path) -> None:
    (top / "shared").mkdir(mode=0o755)
    os.chown(top / "shared", USER, USER)
    with pytest.raises(InputError, match=f"belongs to uid {USER}, who could replace what is in it"):
        shared(top / "shared")
    shared(top / "shared", 0, USER)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("how", ["owner", "mode", "group", "link"])
def test_a_folder_below_a_users(top: Path, how: str, there: bool) -> None:
    users = top / "users"
    users.mkdir(mode=0o755)
    path = users / "shared"
    if there:
        path.mkdir()
    if how == "owner":
        os.chown(users, USER, USER)
    elif how == "mode":
        users.chmod(0o777)
    elif how == "group":
        users.chmod(0o775)
        os.chown(users, 0, USER)
    else:
        os.chown(users, USER, USER)
        (top / "link").symlink_to(users)
        path = top / "link" / "shared"
    for check in (shared, lambda at: check_spool(str(at), str(at), ""), lambda at: check_events(str(at), str(at))):
        with pytest.raises(
            InputError, match=r"lies below .*users, which others than root can change|lies below .*link"
        ):
            check(path)


def test_a_sticky_folder_keeps_what_is_roots(top: Path) -> None:
    (top / "all").mkdir()
    (top / "all").chmod(0o1777)
    (top / "all" / "shared").mkdir()
    shared(top / "all" / "shared")


@pytest.mark.parametrize("mode", ["--node", "--controller"])
def test_the_installer_refuses_it_untouched(installer: Installer, mode: str) -> None:
    folder = installer.at("/fsx/mine")
    folder.mkdir(parents=True)
    os.chown(folder, USER, USER)
    before = snapshot(installer.root, times=True)
    user = ("--slurm-user", "nobody") if mode == "--controller" else ()
    done = installer(mode, "--shared", "/fsx/mine", *user, check=False)
    assert done.returncode == 2 and f"--shared /fsx/mine: belongs to uid {USER}" in done.stderr
    assert snapshot(installer.root, times=True) == before
