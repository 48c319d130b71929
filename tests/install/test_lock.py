from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from nccl_slurm.errors import InstallError
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.lock import alone

LAYOUT = Layout(conf="/etc/some-site")


def test_a_second_one_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with alone(LAYOUT, str(tmp_path)):
        with pytest.raises(InstallError, match=r"another install\.sh is at work on /etc/some-site"):
            alone(LAYOUT, str(tmp_path)).__enter__()
        with alone(Layout(conf="/etc/other"), str(tmp_path)):
            assert len(os.listdir(tmp_path)) == 2
    with alone(LAYOUT, str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "nccl-slurm-install-etc-some-site.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        alone(LAYOUT, str(tmp_path)).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def _enter_often(folder: str) -> None:
    entered = 0
    while entered < 50:
        try:
            with alone(LAYOUT, folder):
                (Path(folder) / "inside").mkdir()
                (Path(folder) / "inside").rmdir()
                entered += 1
        except InstallError:
            continue


def test_never_two_at_once(tmp_path: Path) -> None:
    each = [multiprocessing.Process(target=_enter_often, args=(str(tmp_path),)) for _ in range(4)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    assert [one.exitcode for one in each] == [0] * 4 and os.listdir(tmp_path) == []
