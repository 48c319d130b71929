"""parse/ on the oldest Python that node code claims: 3.8, standard library alone, isolated."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nccl_slurm
from nccl_slurm.parse.patterns import compile_rows

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import load_rows
rows = load_rows(sys.argv[2])
sources, gaps = walk(sys.argv[3])
parsed = read_sources(sources, rows, now=1790000000.0)
kernel = kernel_facts([(1.0, "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.")], "n1", rows)
print(json.dumps({
    "hash": rows.hash,
    "facts": [fact.to_json() for fact in list(parsed.facts) + kernel],
    "ranks": [rank.to_json() for rank in parsed.ranks],
    "gaps": [list(map(str, (gap.source, gap.why))) for gap in parsed.gaps],
    "modules": sorted(name for name in sys.modules if name.startswith("nccl_slurm")),
}))
"""


def node_python() -> str | None:
    given = os.environ.get("NCCL_SLURM_NODE_PYTHON")
    found = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.8*/bin/python3.8")))
    return given or (found[-1] if found else shutil.which("python3.8"))


@pytest.mark.node_python
def test_same_answer_on_the_oldest_python(tmp_path: Path, patterns_toml: str) -> None:
    python = node_python()
    if python is None:
        pytest.skip("no Python 3.8 here; name one in NCCL_SLURM_NODE_PYTHON")
    rows = tmp_path / "patterns.json"
    rows.write_text(compile_rows(patterns_toml))
    logs = tmp_path / "logs" / "n1"
    logs.mkdir(parents=True)
    for number, name in enumerate(["a.log", "b.log"]):
        (logs / name).write_text(f"[rank{number}]: Traceback (most recent call last):\n[rank{number}]: mylib.Bad: x\n")
    (logs / "error.json").write_text(json.dumps({"message": "ValueError: x"}))
    (logs / "nccl_trace_rank_0").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02s.")
    (logs / "p.log.gz").write_bytes(b"\x1f\x8b rubbish")
    root = str(Path(nccl_slurm.__file__).parent.parent)
    command = [python, "-I", "-S", "-W", "error", "-c", PROGRAM, root, str(rows), str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    old = json.loads(done.stdout)
    here = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, timeout=60, check=True)
    assert old == json.loads(here.stdout)
    assert {fact["kind"] for fact in old["facts"]} >= {"python.exception", "elastic.error-file", "kernel.xid"}
    assert [rank["rank"] for rank in old["ranks"]] == [0, 1]
    assert [gap[0] for gap in old["gaps"]] == ["n1/nccl_trace_rank_0", "n1/p.log.gz"]
    assert all(
        name.startswith(("nccl_slurm.parse", "nccl_slurm.model", "nccl_slurm.errors")) for name in old["modules"][1:]
    )


@pytest.mark.node_python
def test_without_the_compiled_rows_an_old_python_says_what_is_missing() -> None:
    python = node_python()
    if python is None:
        pytest.skip("no Python 3.8 here; name one in NCCL_SLURM_NODE_PYTHON")
    root = str(Path(nccl_slurm.__file__).parent.parent)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from nccl_slurm.errors import ConfigError\n"
        "from nccl_slurm.parse.patterns import load_rows\n"
        "try:\n    load_rows()\nexcept ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-c", program, root], capture_output=True, text=True, timeout=60, check=True
    )
    assert "NCCL_SLURM_PATTERNS" in done.stdout
