"""What is in an installation's way is found before its first change, also by --dry-run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.install.staging import Installer, snapshot

HOOKS = "/opt/nccl-slurm/slurm"


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no mounts here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def refused(installer: Installer, *options: str) -> list[str]:
    """What it says where it refuses, which must not have touched anything."""
    said = []
    for more in ((), ("--dry-run",)):
        before = snapshot(installer.root, times=True)
        done = installer("--node", *options, *more, check=False)
        assert done.returncode == 1 and "nothing was changed" in done.stderr, done.stderr
        assert snapshot(installer.root, times=True) == before
        said.append(done.stderr)
    assert said[0] == said[1]
    return said[0].splitlines()


def test_hooks_that_are_a_link(installer: Installer) -> None:
    there = installer.at("/srv/hooks")
    there.mkdir(parents=True)
    link = installer.at(HOOKS)
    link.parent.mkdir(parents=True)
    link.symlink_to(there)
    lines = refused(installer)
    assert any(f"{link}: is a link where a folder has to be; move it away" in line for line in lines)


def test_a_file_in_the_place_of_a_folder_and_the_other_way(installer: Installer) -> None:
    installer.at(f"{HOOKS}/task_prolog").mkdir(parents=True)
    installer.at(f"{HOOKS}/prolog.d").write_text("")
    said = "\n".join(refused(installer))
    assert "prolog.d: is a file where a folder has to be" in said
    assert "task_prolog: is a folder where a file has to be" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("ro",), "its file system is read-only; mount it writable"),
        (("size=64k",), "its file system is full, "),
        (("nr_inodes=20",), "its file system has no room for "),
    ],
    ids=["read-only", "full", "inodes"],
)
def test_a_file_system_without_room(installer: Installer, options: tuple[str, ...], why: str) -> None:
    with mounted(installer.at("/opt"), *options):
        assert any(f"{installer.at('/opt')}: {why}" in line for line in refused(installer))


def test_what_is_there_already_needs_no_room(installer: Installer) -> None:
    """A second run changes nothing, so a disk that has filled up meanwhile is in nobody's way."""
    with mounted(installer.at("/opt"), "size=16m"):
        installer("--node")
        (installer.at("/opt") / "full").write_bytes(b"x" * (4 << 20))
        subprocess.run(["mount", "-o", "remount,ro", str(installer.at("/opt"))], check=True)
        assert installer("--node").returncode == 0
