"""The demo of install.sh, with the job that needs no torch: hooks, daemon, comment and report on a real Slurm."""

from __future__ import annotations

import pytest

from tests.cluster import demo
from tests.cluster.harness import Cluster


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


def test_torch_is_asked_for_but_absent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "torch_of_jobs", lambda python: None)
    assert demo.main(["--with-torch"]) == 1
    assert "./install.sh --demo --with-torch installs it" in capsys.readouterr().err
