"""What is sent to nodes, on the oldest Python that node code claims: 3.8, standard library alone, isolated."""

from __future__ import annotations

import subprocess

import pytest

from nccl_slurm.doctor import sources
from nccl_slurm.doctor.observation import unpacked
from tests.parse.test_node_python import node_python


@pytest.mark.node_python
def test_all_sources_on_the_oldest_python() -> None:
    python = node_python()
    if python is None:
        pytest.skip("no Python 3.8 here; name one in NCCL_SLURM_NODE_PYTHON")
    told = sources.manifest(sources.SOURCES, limit_s=60.0)
    command = [python, "-I", "-S", "-W", "error", "-"]
    done = subprocess.run(command, input=sources.program(told), capture_output=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()
    seen = unpacked(done.stdout, "n1", "ssh")
    assert set(seen.found) == set(sources.SOURCES)
    assert not [key for key, one in seen.found.items() if "Error" in str(one.get("why"))]
