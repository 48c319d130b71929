"""``nccl-slurm repro``: where the script goes, what is refused, and with which status."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_slurm.cli.main import main
from nccl_slurm.cli.repro import command

WAITS = (
    "[rank{0}]:[E704 19:50:32.426182607 ProcessGroupNCCL.cpp:757] [Rank {0}] Watchdog caught collective "
    "operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600077 milliseconds\n"
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "job.log").write_text(WAITS.format(0) + WAITS.format(1))
    return folder


def call(*arguments: str) -> int:
    """Exit status as a shell sees it."""
    with pytest.raises(SystemExit) as ended:
        main(["repro", *arguments])
    return int(ended.value.code or 0)


def test_standard_output_holds_the_script_alone(logs: Path) -> None:
    ended = CliRunner().invoke(command, ["--logs", str(logs), "--nproc", "4", "--backend", "gloo"])
    assert ended.exit_code == 0 and ended.stderr == ""
    assert "\nNPROC = 4\nBACKEND = 'gloo'\n" in ended.stdout
    assert "dist.all_reduce(x)" in ended.stdout
    ast.parse(ended.stdout)


def test_a_file_is_for_its_owner_alone_and_never_replaced_unasked(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    arguments = ["--logs", str(logs), "-o", str(path)]
    runner = CliRunner()
    assert (runner.invoke(command, arguments).exit_code, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    made = path.read_text()
    path.write_text("mine")
    assert call(*arguments) == 1
    assert path.read_text() == "mine"
    assert runner.invoke(command, [*arguments, "--force"]).exit_code == 0
    assert path.read_text() == made
    assert sorted(os.listdir(tmp_path)) == ["logs", "repro.py"]


def test_a_link_is_replaced_and_not_followed(logs: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.py"
    target.write_text("mine")
    link.symlink_to(target)
    assert call("--logs", str(logs), "-o", str(link)) == 1
    assert CliRunner().invoke(command, ["--logs", str(logs), "-o", str(link), "--force"]).exit_code == 0
    assert target.read_text() == "mine" and not link.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-o", "{tmp}/none/repro.py"], 1, "can't be written: No such file or directory; give -o a place"),
        (["-o", "{tmp}"], 1, "is there already"),
        (["-o", "{tmp}", "--force"], 1, "can't be written: Is a directory"),
        (["--force"], 2, "--force goes with -o FILE"),
        (["--nproc", "1"], 2, "--nproc"),
        (["--nproc", "65"], 2, "--nproc"),
        (["--backend", "mpi"], 2, "--backend"),
        (["42"], 2, "give either a JOBID or --logs PATH"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], status: int, words: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--logs", str(logs), *(each.format(tmp=tmp_path) for each in arguments)) == status
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_what_can_not_be_shown_leaves_no_file(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs / "job.log").write_text("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert call("--logs", str(logs), "-o", str(tmp_path / "repro.py")) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "no script for cuda-oom: it takes the program and its GPU" in captured.err
    assert not (tmp_path / "repro.py").exists()
