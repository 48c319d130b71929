"""Whose folder a report goes into, and what is said of one that it does not go into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccl_slurm.daemon.publish import is_published, publish, unpublish

OWNER, READER = 7002, 7001
MADE = 1795990000.25
REPORT = {"job": {"id": "42", "run": 1}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As --ship-user leaves it for a daemon that runs as root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = tmp_path / "reports"
    made.mkdir(mode=0o711)
    os.chown(made, OWNER, OWNER)
    return made


def test_a_folder_of_the_shipping_user_takes_reports(folder: Path) -> None:
    assert publish(str(folder), REPORT, READER, made=MADE, newest=True, owners=[0, OWNER]) is None
    assert sorted(os.listdir(folder)) == ["42.json", "42.run1.json"]
    unpublish(str(folder), ["42.json"], owners=[0, OWNER])
    assert os.listdir(folder) == ["42.run1.json"]


def test_a_folder_of_anybody_else_is_named_with_its_owner(folder: Path) -> None:
    why = publish(str(folder), REPORT, READER, made=MADE, newest=True, owners=[0])
    assert why is not None and f"belongs to uid {OWNER}; chown it to the daemon's user" in why
    assert os.listdir(folder) == []


def test_a_mode_that_lets_others_write_is_named(folder: Path) -> None:
    folder.chmod(0o733)
    why = publish(str(folder), REPORT, READER, made=MADE, newest=True, owners=[OWNER])
    assert why == f"{folder}: others may write here (mode 0733); chmod 0711"
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("made", "same"), [(MADE, True), (MADE + 0.5, False), (MADE - 0.5, False), (MADE + 60, False), (MADE - 60, False)]
)
def test_a_copy_is_of_one_report(folder: Path, made: float, same: bool) -> None:
    assert not is_published(str(folder), "42", 1, made)
    assert publish(str(folder), REPORT, READER, made=MADE, newest=True, owners=[OWNER]) is None
    assert is_published(str(folder), "42", 1, made) is same


def test_where_times_have_whole_seconds(folder: Path) -> None:
    assert publish(str(folder), REPORT, READER, made=MADE, newest=True, owners=[OWNER]) is None
    os.utime(folder / "42.run1.json", (int(MADE), int(MADE)))
    assert is_published(str(folder), "42", 1, MADE) and not is_published(str(folder), "42", 1, MADE + 1)
