"""The simulator beside real torchrun jobs on gloo: the same lines by the same ranks, but for numbers and places."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from nccl_slurm.model import Fact, Parsed
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.testing import Crash, Hang, Mismatch, Raise, Scenario, simulate, write
from nccl_slurm.testing.events import Event
from tests.lean_torch import ASKED, lean

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not there"),
]
CULPRIT = 2
#: Whoever is quicker: ranks that lost a peer and end by themselves, or the agent that ends them.
RACES = {
    *(
        "gloo.peer-closed",
        "gloo.timeout",
        "elastic.closing",
        "elastic.error-file",
        "elastic.closed-worker",
        "elastic.failed",
    ),
}


def real(folder: Path, mode: str) -> Path:
    """One torchrun of four ranks: its console and its log folder."""
    program = Path(__file__).parents[1] / "cluster" / "jobs" / "train.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--tee=3"]
    command += [f"--log-dir={folder / 'elastic'}", str(program), f"--mode={mode}", f"--rank={CULPRIT}", "--timeout=6"]
    run = subprocess.run(
        command, env=lean(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False
    )
    (folder / "console.out").write_bytes(run.stdout)
    assert run.returncode == 1 and ASKED.encode() not in run.stdout
    return folder


def simulated(folder: Path, event: Event, *, detail: bool) -> Path:
    scenario = Scenario(
        world=4,
        per_node=4,
        backend="gloo",
        torch=(2, 13),
        output="label",
        timeout_s=6.0,
        dumps=False,
        detail=detail,
        events=[event],
    )
    return write(simulate(scenario), folder)


def read(folder: Path, rows: Rows) -> Parsed:
    """Without the words of Slurm, under which the real ones don't run."""
    sources, _ = walk(str(folder))
    parsed = read_sources(sources, rows)
    return replace(parsed, facts=[fact for fact in parsed.facts if fact.producer != "slurm"])


def shape(fact: Fact) -> str:
    """Without what differs from run to run: times, numbers, paths, hosts, and what the program itself says."""
    text = re.sub(r"^\[default\d\]:", "", fact.text)
    text = re.sub(r"[\w.-]*/[\w./-]*(?=/)", "", text)  # torch writes paths below the current folder without it
    text = re.sub(r"/python[\d.]*", "/python", re.sub(r"\S+\.json", "F", text))
    text = re.sub(r"loss is nan.*", "M", text)
    text = re.sub(r"CollectiveFingerPrint\(.*?\)\)\)", "P", text)
    return " ".join(re.sub(r"-?\d[\d.:]*", "0", text).split())


def causes(parsed: Parsed) -> dict[str, set[int | None]]:
    found: dict[str, set[int | None]] = {}
    for fact in parsed.facts:
        if fact.role == "cause" and not fact.kind.startswith("elastic."):
            found.setdefault(fact.kind, set()).add(fact.rank)
    return found


@pytest.mark.parametrize(
    ("mode", "event"),
    [
        ("raise", Raise(CULPRIT, 3, "ValueError: loss is nan at step 3")),
        ("sigkill", Crash(CULPRIT, 3, 9)),
        ("sleep", Hang(CULPRIT, 3)),
        ("mismatch", Mismatch(CULPRIT, 3, "ALLREDUCE", 32)),
    ],
)
def test_the_same_lines(tmp_path: Path, mode: str, event: Event, rows: Rows) -> None:
    (tmp_path / "real").mkdir()
    one = read(real(tmp_path / "real", mode), rows)
    two = read(simulated(tmp_path / "simulated", event, detail=mode == "mismatch"), rows)
    assert causes(one) == causes(two)
    kinds = {fact.kind for fact in one.facts} ^ {fact.kind for fact in two.facts}
    assert kinds <= RACES
    shapes = {fact.kind: {shape(f) for f in one.facts if f.kind == fact.kind} for fact in one.facts}
    for fact in two.facts:
        assert fact.kind in RACES or shape(fact) in shapes[fact.kind]
    exits = [{rank.rank: rank.exit for rank in parsed.ranks}.get(CULPRIT) for parsed in (one, two)]
    assert exits[0] == exits[1] or mode == "mismatch"  # where all raise, the agent ends some before they are gone
