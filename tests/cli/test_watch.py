"""`nccl-slurm watch`: wrong usage, no Slurm, and what is shown of looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.attribute.live import Quiet, judge
from nccl_slurm.cli.main import main
from nccl_slurm.cli.watch import _Shown
from nccl_slurm.model import Evidence, Job
from nccl_slurm.report.build import build


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["watch", *arguments])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


@pytest.mark.parametrize(
    "arguments",
    [(), ("x",), ("5", "--interval=0"), ("5", "--silent=0"), ("5", "--ras=nowhere"), ("5", "--ras=n1:99999")],
    ids=" ".join,
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "") and len(err.splitlines()) == 1


def test_without_slurm_it_says_what_to_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "nccl-slurm.toml"
    config.write_text(f'[slurm]\nbin = "{tmp_path}"\n')
    status, out, err = run(capsys, "5", "--once", "--config", str(config))
    assert (status, out) == (1, "") and "slurm.bin" in err and len(err.splitlines()) == 1


def test_a_reader_is_an_absolute_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "nccl-slurm.toml"
    config.write_text('[live]\nreader = "nccl-slurm-node"\n')
    status, _, err = run(capsys, "5", "--once", "--config", str(config))
    assert status == 2 and "live.reader" in err


def report(quiet: Quiet) -> dict[str, Any]:
    evidence, verdict = judge(Evidence(Job(id="5", raw_id=5, cluster="c", state="RUNNING", name="\x1b[2J")), quiet)
    return build(evidence, verdict, (), "live")


def test_the_whole_report_comes_when_who_is_named_changes_else_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show = _Shown(False, False, False)
    calm, silent = report(Quiet()), report(Quiet(all_s=80.0, longest_s=5.0))
    shown = []
    for one in (calm, calm, silent, silent, calm):
        show(one)
        shown.append(capsys.readouterr().out)
    assert [len(text.splitlines()) > 3 for text in shown] == [True, False, True, False, True]
    assert "80 s" in shown[3] and not any("\x1b" in text for text in shown)
