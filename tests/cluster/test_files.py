"""Files of jobs with odd names and rights: what they say is read all the same, as their owner."""

from __future__ import annotations

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome


@pytest.fixture
def lab(everything: Cluster) -> Cluster:
    everything.heal()
    return everything


@pytest.mark.parametrize("umask", ["000", "027", "077"])
def test_any_umask_of_a_rank(lab: Cluster, umask: str) -> None:
    """A file beside the dumps, which task_prolog has named, that its owner alone may read."""
    said = (
        f'umask {umask}; echo "[rank0]: ValueError: under {umask}" >"${{TORCH_NCCL_DEBUG_INFO_TEMP_FILE%/*}}/own.log"'
    )
    job = lab.sbatch(f"#!/bin/sh\nsrun -n1 sh -c '{said}; exit 1'\n", "-N1")
    found = outcome(lab, job, ready=lambda told: all(node["record"] != "missing" for node in told["nodes"]))
    (fact,) = [fact for fact in found.report["facts"] if f"under {umask}" in fact["text"]]
    assert fact["file"].endswith("/own.log") and found.failure_class == "rank-exception"


@pytest.mark.parametrize(
    "name",
    [
        "with blanks  in it.out",
        'it\'s "quoted" `x` $y;z.out',
        "back\\slash.out",
        "two\nlines.out",
        "caf\u00e9.out",
        "=a=b .out",
    ],
    ids=["blanks", "quotes", "backslash", "newline", "utf8", "equals"],
)
def test_any_name_of_an_output_file(lab: Cluster, name: str) -> None:
    script = "#!/bin/sh\necho '[rank0]: ValueError: in an odd file'\nexit 1\n"
    job = lab.sbatch(script, "-N1", f"--output={lab.scratch}/home/alice/{name}", f"--job-name={name}")
    found = outcome(lab, job)
    assert [fact["text"] for fact in found.report["facts"] if "odd file" in fact["text"]], found.report["gaps"]
    assert f"report {job}]" in found.comment
    shown = lab.nccl_slurm("report", job).stdout
    assert "odd file" in shown and "two\nlines" not in shown
