"""Each kind as a real script, run with torch on gloo: the error that its header promises is there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.logs import report_of_logs
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.repro.plan import plan
from nccl_slurm.repro.script import Wish, write
from tests.lean_torch import ASKED, lean
from tests.repro.plans import PLANS, report

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not there; ./install.sh --test --with-torch brings it",
    ),
]

#: Seconds that ranks wait in a scene; torch's start is not in it.
WAIT_S = "3"


def run(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    launched = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in launched}
    environment["REPRO_TIMEOUT_S"] = WAIT_S
    whole = "DistributedDataParallel" in path.read_text()  # it asks torch's compiler for its mode
    ended = subprocess.run(
        [sys.executable, *command, str(path)],
        env=environment if whole else lean(environment),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ASKED not in ended.stdout + ended.stderr
    return ended


def written(folder: Path, name: str, **options: Any) -> Path:
    path = folder / "repro.py"
    path.write_text(write(report(), PLANS[name], "job 42", Wish(**options)))
    return path


MISMATCH = "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
#: Name of a plan, options → what stands in the last line.
RUNS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("absent", {}, ("Ranks 1 failed to pass monitoredBarrier in 3000 ms",)),
    ("absent", {"nproc": 3, "barrier": True}, ("rank 0: ", "2 failed to pass monitoredBarrier in 3000 ms")),
    ("absent, rank 0", {}, ("rank 1: ", "Rank 1 successfully reached monitoredBarrier, but received errors")),
    ("absent, monitored barrier", {}, ("Ranks 1 failed to pass monitoredBarrier",)),
    ("raise", {}, ("rank 1: ValueError: loss is nan", "failed to pass monitoredBarrier")),
    ("exit", {"barrier": True}, ("rank 1: exit status 3", "failed to pass monitoredBarrier")),
    ("signal", {}, ("rank 1: exit status -11", "failed to pass monitoredBarrier")),
    ("shape", {"barrier": True}, (MISMATCH, "TensorShape=[64, 65]", "Tensor shapes: 64 64vs 64 65")),
    ("shape, uneven parts", {"nproc": 3}, (MISMATCH, "OpType=_REDUCE_SCATTER_BASE", "Tensor shapes:")),
    ("shape, number of dimensions", {}, (MISMATCH, "Tensor shapes:")),
    ("dtype", {}, (MISMATCH, "Tensor dtypes: Floatvs BFloat16")),
    ("order", {}, (MISMATCH, "OpType=ALLREDUCE", "Op type:")),
    ("p2p, recv", {"nproc": 3}, ("rank 2: ", "Timed out waiting 3000ms for recv operation to complete")),
    ("ddp", {}, ("but Rank 0 has 3 params, while rank 1 has inconsistent 5 params",)),
    ("init", {}, ("rank 0: ", "wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1")),
    ("clients", {}, ("seconds waiting for clients. 1/2 clients joined",)),
    ("master", {}, ("The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, ",)),
    ("name", {}, ("trying to connect to (no-such-host.invalid, 29500)",)),
    ("port", {}, ("The server socket has failed to listen", "EADDRINUSE")),
]


@pytest.mark.parametrize(
    ("name", "options", "words"), RUNS, ids=[f"{name}-{'-'.join(map(str, options))}" for name, options, _ in RUNS]
)
def test_the_expected_error_comes(name: str, options: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(written(tmp_path, name, **options))
    last = ended.stdout.splitlines()[-1]
    assert (ended.returncode, last[:12]) == (0, "reproduced: "), ended.stdout[-4000:] + ended.stderr[-2000:]
    assert [word for word in words if word not in ended.stdout] == []


def test_what_the_ranks_printed_leads_to_the_same_script(tmp_path: Path, rows: Rows) -> None:
    """torch's real words, read as logs of a job."""
    ended = run(written(tmp_path, "op", nproc=3))
    last = ended.stdout.splitlines()[-1]
    assert (ended.returncode, last[:12]) == (0, "reproduced: ")
    assert MISMATCH in last and "but Rank 2 is running" in last and "Op type: ALLREDUCEvs BROADCAST" in ended.stdout
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in range(3):
        own = re.findall(rf"^\[rank {rank}\] (.*)$", ended.stdout, re.MULTILINE)
        (logs / f"rank{rank}.log").write_text("\n".join(own))
    report = report_of_logs(str(logs))
    assert (report["verdict"]["class"], report["verdict"]["confidence"]) == ("collective-mismatch", "proven")
    found, wanted = plan(report, rows), PLANS["op"]
    assert (found.kind, found.rank, found.call, found.other) == (wanted.kind, 2, wanted.call, wanted.other)


@pytest.mark.parametrize(
    ("name", "before", "after", "why"),
    [
        ("absent", "if rank == ODD:", "if False:", "rank 0 printed nothing that matches"),
        ("shape", "[64, 65]", "[64, 64]", "rank 0 printed nothing that matches"),
        ("exit", "os._exit(3)", "os._exit(4)", "rank 1 ended with status 4, not 3"),
    ],
)
def test_a_script_that_shows_nothing_says_so(name: str, before: str, after: str, why: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    ended = run(path)
    last = ended.stdout.splitlines()[-1]
    assert (ended.returncode, last[:16]) == (1, "not reproduced: ")
    assert why in last


@pytest.mark.parametrize(
    ("name", "change", "status"),
    [("absent", ("NPROC", "NPROC"), 0), ("op", ("dist.broadcast(x, src=0)", "dist.all_reduce(x)"), 1)],
)
def test_under_torchrun_each_rank_checks_itself(
    name: str, change: tuple[str, str], status: int, tmp_path: Path
) -> None:
    path = written(tmp_path, name)
    path.write_text(path.read_text().replace(*change))
    ended = run(path, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    assert ended.returncode == status, ended.stdout[-2000:] + ended.stderr[-4000:]
    assert f"rank 0: what was expected was {'not ' if status else ''}seen" in ended.stdout
