"""A shared folder where root is squashed: its owner alone may make things. Root without capabilities stands for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.staging import CHECKOUT

OWNER = 7001
#: As a server that squashes root sees it: no word on files of others. A local process may still become another user.
WITHOUT = "-dac_override,-dac_read_search,-fowner,-chown"


def make(path: Path, uid: int) -> subprocess.CompletedProcess[str]:
    program = f"""\
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from nccl_slurm.errors import InstallError
from nccl_slurm.install import disk
from nccl_slurm.install.entry import Entry
try:
    disk.make(Entry({str(path)!r}, "folder", 0o700, {uid}, {uid}), {str(path)!r})
except InstallError as error:
    sys.exit(str(error))
"""
    command = ["setpriv", f"--bounding-set={WITHOUT}", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-squash-") as folder:
        os.chmod(folder, 0o755)
        os.chown(folder, OWNER, OWNER)
        yield Path(folder)


def test_the_owner_makes_it_where_root_may_not(shared: Path) -> None:
    done = make(shared / "new", OWNER)
    assert (done.returncode, done.stderr) == (0, "")
    info = (shared / "new").stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (OWNER, OWNER, 0o700)


def test_a_wrong_mode_is_put_right_by_the_owner(shared: Path) -> None:
    (shared / "new").mkdir(mode=0o777)
    os.chown(shared / "new", OWNER, OWNER)
    assert make(shared / "new", OWNER).returncode == 0
    assert (shared / "new").stat().st_mode & 0o7777 == 0o700


def test_where_neither_may_it_says_so(shared: Path) -> None:
    done = make(shared / "new", OWNER + 1)
    assert done.returncode == 1
    assert "neither root nor uid 7002 may make it" in done.stderr
    assert not (shared / "new").exists()
