"""The demo of install.sh, with the job that needs no torch: hooks, daemon, comment and report on a real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccl_slurm.config import loads
from tests.cluster import demo
from tests.cluster.harness import CHECKOUT, Cluster
from tests.cluster.scratch import install_hooks


def test_the_rank_that_stopped_is_named(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``cluster`` is there for its checks and for a scratch folder that no other run uses."""
    folder = cluster.scratch.with_name(f"{cluster.scratch.name}-demo")
    monkeypatch.setattr(demo, "SCRATCH", folder)
    assert demo.main(["--without-torch"]) == 0
    output = capsys.readouterr().out
    assert f"team-a run 7 [nccl-slurm: rank {demo.CULPRIT} n2 stalled first (collective-missing-rank); " in output
    assert "$ nccl-slurm report 1\n" in output
    assert not Cluster(folder).alive("slurmctld")
    assert [path.name for path in folder.iterdir()] == ["log"]


def test_what_starts_the_nodes_part_is_where_the_demo_has_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "lab")
    loaded = loads(f'[slurm]\nconf = "/x"\n{demo.programs_of(cluster)}', "demo.toml")
    install_hooks(cluster.scratch, CHECKOUT)
    for program in (loaded.live.reader, loaded.ssh.command):
        assert Path(program).is_relative_to(cluster.scratch) and os.access(program, os.X_OK)


def test_torch_is_asked_for_but_absent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "torch_of_jobs", lambda python: None)
    assert demo.main(["--with-torch"]) == 1
    assert "./install.sh --demo --with-torch installs it" in capsys.readouterr().err
