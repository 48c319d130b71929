"""A user's folder as an attack on the process that reads it, and on root behind it."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_slurm.capture import userfiles
from nccl_slurm.capture.userfiles import Found, Limits, Refused, find
from nccl_slurm.model import Gap

ME = os.geteuid()
OTHER = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="nccl-slurm-user-"))
    yield made
    shutil.rmtree(made)


def names(path: Path, gaps: list[Gap] | None = None, limits: Limits | None = None) -> list[str]:
    return [one.name for one in find(str(path), ME, [] if gaps is None else gaps, limits or Limits())]


def content(found: Found) -> bytes:
    with found.open() as file:
        return file.read()


def test_reads_regular_files_in_order(folder: Path) -> None:
    (folder / "sub").mkdir()
    for name in ("b.log", "a.log", "sub/c.log"):
        (folder / name).write_text(name)
    found = find(str(folder), ME, [])
    assert [(one.name, content(one)) for one in found] == [
        ("a.log", b"a.log"),
        ("b.log", b"b.log"),
        ("sub/c.log", b"sub/c.log"),
    ]
    assert found[0].size == 5 and found[0].mtime == os.stat(folder / "a.log").st_mtime


def test_one_file_named_absolutely(folder: Path) -> None:
    (folder / "slurm-1.out").write_text("x")
    (found,) = find(str(folder / "slurm-1.out"), ME, [])
    assert found.name == str(folder / "slurm-1.out") and content(found) == b"x"


def test_nothing_but_regular_files_of_the_owner(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("root's")
    home = folder / "home"
    home.mkdir()
    (home / "link").symlink_to(secret)
    (home / "dangling").symlink_to("/nonexistent")
    (home / "loop").symlink_to("loop")
    (home / "dirlink").symlink_to(folder)
    (home / "device").symlink_to("/dev/zero")
    os.mkfifo(home / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "socket"))
        (home / "fine.log").write_text("ok")
        gaps: list[Gap] = []
        assert names(home, gaps) == ["fine.log"]
    assert {one.source for one in gaps} == {"link", "dangling", "loop", "dirlink", "device", "fifo", "socket"}
    assert all("link is not followed" in one.why for one in gaps if "l" in one.source and one.source != "fifo")


@pytest.mark.skipif(ME != 0, reason="only root can give files away")
def test_files_of_others_and_hard_links_to_them_are_refused(folder: Path) -> None:
    (folder / "theirs").write_text("secret")
    os.chown(folder / "theirs", OTHER, OTHER)
    os.link(folder / "theirs", folder / "hard")
    gaps: list[Gap] = []
    assert names(folder, gaps) == []
    assert [(one.source, one.why) for one in gaps] == [
        (name, "owned by uid 65534, not by the job's user") for name in ("hard", "theirs")
    ]


def test_a_named_path_that_is_a_link_is_a_gap(folder: Path) -> None:
    (folder / "real").write_text("x")
    (folder / "out").symlink_to(folder / "real")
    gaps: list[Gap] = []
    assert names(folder / "out", gaps) == []
    assert "link is not followed" in gaps[0].why


def test_folders_above_a_named_path_may_be_links(folder: Path) -> None:
    (folder / "mnt").mkdir()
    (folder / "mnt" / "out").write_text("x")
    (folder / "home").symlink_to(folder / "mnt")
    assert names(folder / "home" / "out") == [str(folder / "home" / "out")]


def test_a_missing_path_is_a_gap(folder: Path) -> None:
    gaps: list[Gap] = []
    assert names(folder / "none", gaps) == []
    assert gaps == [Gap(str(folder / "none"), "No such file or directory")]


@pytest.mark.parametrize("swap", ["link", "fifo", "directory", "gone"])
def test_a_file_that_changes_after_the_first_look_is_refused(folder: Path, swap: str) -> None:
    path = folder / "x.log"
    path.write_text("harmless")
    (found,) = find(str(folder), ME, [])
    path.unlink()
    if swap == "link":
        path.symlink_to("/etc/shadow")
    elif swap == "fifo":
        os.mkfifo(path)
    elif swap == "directory":
        path.mkdir()
    with pytest.raises((OSError, Refused)):
        found.open()


def test_a_folder_that_becomes_a_link_is_refused(folder: Path) -> None:
    (folder / "home" / "sub").mkdir(parents=True)
    (folder / "home" / "sub" / "passwd").write_text("x")
    (found,) = find(str(folder / "home"), ME, [])
    shutil.rmtree(folder / "home" / "sub")
    (folder / "home" / "sub").symlink_to("/etc")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        found.open()


def test_a_growing_file_ends(folder: Path) -> None:
    (folder / "x.log").write_bytes(b"1234")
    (found,) = find(str(folder), ME, [], Limits(file_bytes=10))
    (folder / "x.log").write_bytes(b"x" * 100)
    assert content(found) == b"x" * 10


def test_large_files_are_cut_with_a_gap(folder: Path) -> None:
    (folder / "a.log").write_bytes(b"a" * 20)
    (folder / "b.log").write_bytes(b"b" * 20)
    (folder / "c.log").write_bytes(b"c" * 20)
    gaps: list[Gap] = []
    found = find(str(folder), ME, gaps, Limits(file_bytes=15, total_bytes=25))
    assert [len(content(one)) for one in found] == [15, 10, 0]
    assert [one.source for one in gaps] == ["a.log", "b.log", "c.log"]


def test_too_many_files_and_too_deep_folders_are_counted(folder: Path) -> None:
    for number in range(6):
        (folder / f"{number}.log").touch()
    (folder / "d1/d2/d3").mkdir(parents=True)
    (folder / "d1/d2/d3/deep.log").touch()
    gaps: list[Gap] = []
    assert names(folder, gaps, Limits(files=5, depth=9)) == [f"{number}.log" for number in range(5)]
    assert names(folder, gaps, Limits(files=99, depth=2)) == [f"{number}.log" for number in range(6)]
    assert [one.why[:16] for one in gaps] == ["2 names left out", "1 names left out"]


def test_names_that_are_no_text_are_shown_and_read(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff\x1b[31m.log", "wb") as file:
        file.write(b"x")
    (found,) = find(str(folder), ME, [])
    assert found.name == "\\xff\x1b[31m.log" and content(found) == b"x"


def test_the_capped_reader_is_a_plain_binary_file(folder: Path) -> None:
    (folder / "x").write_bytes(b"one\ntwo\nthree")
    with userfiles.opened(str(folder), ("x",), ME, 9) as file:
        assert isinstance(file, io.BufferedReader)
        assert file.readlines() == [b"one\n", b"two\n", b"t"]
