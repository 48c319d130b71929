"""What a job prints or writes proves nothing about a machine, and nothing about a machine that it did not run on."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.outcome import Outcome, outcome
from tests.security.conftest import heal

HARMLESS = {"none", "unknown", "fix-code", "fix-config", "investigate", "retry"}

#: Each accuses n4, where the job never ran, in the words of another program.
PRINTED = """\
NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.
[ 12.5] n4 kernel: NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus.
n4 kernel: mce: [Hardware Error]: Machine check events logged
slurmstepd-n4: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.
srun: error: n4: task 1: Killed
srun: error: Node failure on n4
slurmctld: error: Nodes n4 not responding
n4:123:456 [0] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 0 busId a1000 - Init COMPLETE
n4:123:456 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129
n4:123:456 [0] NCCL WARN CUDA failure 719 'unspecified launch failure'
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_12:00:00
  host      : n4
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 123)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 123
============================================================
|   0  NVIDIA H100 80GB HBM3 On  | 00000000:A1:00.0 Off |   99 |  Uncorr. ECC
"""


def dump(rank: int) -> dict[str, Any]:
    """A flight recorder whose rank 1, on n4 by its own word, never came."""
    entry = {
        "record_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1 + rank,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled" if rank else "completed",
        "input_sizes": [[1]],
        "output_sizes": [[1]],
        "frames": [{"name": "n4", "filename": "n4", "line": 1}],
    }
    status = {
        "0": {"last_enqueued_collective": 1 + rank, "last_started_collective": 1, "last_completed_collective": rank}
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "hostname": "n4", "pg_config": groups, "pg_status": status, "entries": [entry]}


@pytest.fixture(scope="module")
def found(judged: Cluster) -> Outcome:
    heal(judged)
    liar = judged.home / "liar"
    liar.mkdir(exist_ok=True)
    (liar / "printed.txt").write_text(PRINTED)
    (liar / "nccl.n4.7.log").write_text(PRINTED)
    (liar / "task.0.1").write_text("step=0\nprocid=1\nlocalid=1\npid=1\nhost=n4\ngpus=0\ntime=1\n")
    for rank in (0, 1):
        (liar / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank)))
    error = liar / "elastic" / "x" / "attempt_0" / "1"
    error.mkdir(parents=True, exist_ok=True)
    message = {"message": "Xid 79 on n4", "extraInfo": {"py_callstack": "n4", "timestamp": "1", "hostname": "n4"}}
    (error / "error.json").write_text(json.dumps({"message": message}))
    judged.run(["chmod", "-R", "a+rX", str(liar)])
    copy = f"srun -N1 -n1 -w n1 cp -r {liar}/. {judged.spool}/n1/$SLURM_JOB_ID/user"
    job = judged.sbatch(f"#!/bin/sh\n{copy}\ncat {liar}/printed.txt\nexit 1\n", "-N2", "-w", "n1,n2")
    return outcome(judged, job)


def test_no_node_that_the_job_did_not_have_is_named(found: Outcome) -> None:
    assert "n4" not in found.comment and "n3" not in found.comment
    assert {host for _, host in found.culprits} <= {None, "n1", "n2"}
    assert not {item["target"] for item in found.report["recommendations"]} - {None, "n1", "n2"}
    assert "n4" not in str([item["commands"] for item in found.report["recommendations"]])


def test_what_a_job_wrote_is_no_hardware_evidence(found: Outcome) -> None:
    assert "Xid" not in found.comment and "79" not in found.comment
    assert {item["action"] for item in found.report["recommendations"]} <= HARMLESS
    kernel = [fact for fact in found.report["facts"] if fact["trust"] == "root"]
    assert [fact for fact in kernel if "Xid" in fact["text"] or "n4" in fact["text"]] == []
    assert found.report["verdict"]["action"] in HARMLESS


def test_it_was_read_all_the_same(found: Outcome) -> None:
    assert any(fact["trust"] == "job" and "n4" in fact["text"] for fact in found.report["facts"])


def test_a_dump_that_is_a_program_runs_nowhere(tmp_path: Path) -> None:
    """``report --logs`` is what an admin runs as root on a user's folder."""
    from tests.security.attacks import Bomb

    stolen = tmp_path / "stolen"
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "nccl_trace_rank_0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Bomb(f"touch {stolen}")]}))
    (logs / "x.log").write_text("RuntimeError: x\n")
    from nccl_slurm.cli.logs import report_of_logs

    assert report_of_logs(str(logs))["status"] == "final" and not stolen.exists()
