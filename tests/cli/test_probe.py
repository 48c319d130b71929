"""What ``nccl-slurm probe`` and ``watch`` say where a node has no part of nccl-slurm."""

from __future__ import annotations

import pytest

from nccl_slurm.cli.probe import _why
from nccl_slurm.config import Config
from nccl_slurm.live.step import _with_remedy

PROGRAM = "/opt/nccl-slurm/slurm/nccl-slurm-node"


@pytest.mark.parametrize(
    ("last", "remedy"),
    [
        (f"/bin/sh: 1: {PROGRAM}: not found", "or set ssh.command to where nccl-slurm-node is"),
        (f"/bin/sh: line 1: {PROGRAM}: No such file or directory", "install.sh --node"),
        ("srun: error: Unable to confirm allocation for job 10: Invalid job id", "does job 10 run there?"),
        ("python3: not found", "does job 10 run there?"),
    ],
)
def test_a_probe_names_the_right_remedy(last: str, remedy: str) -> None:
    why = _why(Config(), ["noise", last], "10")
    assert remedy in why
    assert ("does job" in why) is (remedy == "does job 10 run there?")


def test_a_reader_that_is_not_there_has_a_remedy() -> None:
    line = f"timeout: failed to run command '{PROGRAM}': No such file or directory"
    assert _with_remedy(line) == (
        f"{line}; install the node's part there (install.sh --node), or set live.reader to where nccl-slurm-node is"
    )
    assert _with_remedy("srun: error: x") == "srun: error: x"
