"""The command by a fork: arguments, environment, output and exit status are those of a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.starter import Starter

ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@pytest.fixture
def starter() -> Iterator[Starter]:
    made = Starter()
    yield made
    made.close()


def test_output_and_exit_status(starter: Starter, tmp_path: Path) -> None:
    good = starter.run(["--version"], ENV, tmp_path, 60)
    assert (good.returncode, good.stderr) == (0, "") and good.stdout.startswith("nccl-slurm, version ")
    bad = starter.run(["report", "--no-such"], ENV, tmp_path, 60)
    assert (bad.returncode, bad.stdout) == (2, "") and "--no-such" in bad.stderr


def test_environment_and_folder_are_those_of_the_call_alone(starter: Starter, tmp_path: Path) -> None:
    named = starter.run(["status"], {**ENV, "NCCL_SLURM_CONFIG": "here.toml"}, tmp_path, 60)
    assert named.returncode == 2 and "here.toml: no such file" in named.stderr
    (tmp_path / "here.toml").write_text("what = is this\n")
    found = starter.run(["status"], {**ENV, "NCCL_SLURM_CONFIG": "here.toml"}, tmp_path, 60)
    assert found.returncode == 2 and "no such file" not in found.stderr
    assert "here.toml" not in starter.run(["status"], ENV, tmp_path, 60).stderr


def test_one_that_takes_too_long_is_ended_and_the_next_one_runs(starter: Starter, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        starter.run(["--version"], ENV, tmp_path, 0.001)
    assert starter.run(["--version"], ENV, tmp_path, 60).returncode == 0
