"""Files that are read: a link that a folder's owner made to another's file is none of his."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccl_slurm.parse.source import walk

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root could read another user's file")


@pytest.mark.parametrize(
    ("folder_uid", "file_uid", "linked", "is_read"),
    [(1000, 1001, True, False), (1000, 0, True, False), (1000, 1000, True, True), (1000, 1001, False, True)],
)
def test_a_hard_link_to_anothers_file(
    folder_uid: int, file_uid: int, linked: bool, is_read: bool, tmp_path: Path
) -> None:
    folder, file = tmp_path / "logs", tmp_path / "secret"
    folder.mkdir()
    file.write_text("x")
    file.chmod(0o600)
    os.chown(file, file_uid, -1)
    (os.link if linked else os.rename)(file, folder / "rank6.log")
    os.chown(folder, folder_uid, -1)
    (source,) = walk(str(folder))[0]
    if is_read:
        with source.open() as opened:
            assert opened.read() == b"x"
    else:
        with pytest.raises(OSError, match="hard link"):
            source.open()
