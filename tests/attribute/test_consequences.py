"""Lines that follow a failure elsewhere, as programs print them: they accuse nobody, alone or behind a cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.logs import report_of_logs

WAIT = (
    "[rank{}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600033 "
    "milliseconds before timing out.\n"
)
CAUSE = "[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: loss is nan\n"
KERNEL = "Nov 20 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:a1:00): "

#: name → the line, and the class of a file that holds nothing else.
LINES = {
    "watchdog": (WAIT.format(1, 1), "collective-hang-unattributed"),
    "abort": (
        "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:1537] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process "
        "group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network "
        "error\n",
        "unknown",
    ),
    "peer-closed": (
        "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1943.\n",
        "net-peer-lost",
    ),
    "ib-flush": (
        "n1:812:901 [2] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=5 "
        "opcode=0 len=0 vendor err 244 (Recv) localGid ::1\n",
        "net-ib-transport",
    ),
    "xid-45": (KERNEL + "45, pid=1234, name=python, Ch 00000008\n", "gpu-app-fault"),
    "xid-43": (KERNEL + "43, pid=1234, name=python, Ch 00000008\n", "gpu-app-fault"),
    "xid-154": (KERNEL + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n", "unknown"),
    "agents-sigterm": (
        "W1129 12:29:58.267000 31591 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 32745 "
        "closing signal SIGTERM\n",
        "unknown",
    ),
    "absurd-oom": (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13194139533312.00 GiB. GPU 3 has a "
        "total capacity of 79.11 GiB of which 40 GiB is free.\n",
        "cuda-oom",
    ),
    "no-params": (
        "[rank1]: RuntimeError: DDP expects same model across all ranks, but Rank 1 has 51 params, while rank 0 has "
        "inconsistent 0 params.\n",
        "unknown",
    ),
    "cancel": ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-03-06T03:17:51 ***\n", "preempt-cancel"),
}


def verdict(folder: Path, text: str) -> dict[str, Any]:
    (folder / "job.log").write_text("world_size=4\n" + text)
    found: dict[str, Any] = report_of_logs(str(folder))["verdict"]
    return found


@pytest.mark.parametrize("name", LINES)
def test_alone_they_accuse_nobody(tmp_path: Path, name: str) -> None:
    line, failure_class = LINES[name]
    found = verdict(tmp_path, line)
    assert (found["class"], found["culprits"]) == (failure_class, [])
    assert found["action"] != "reboot"


@pytest.mark.parametrize("name", LINES)
def test_behind_a_cause_the_cause_is_named(tmp_path: Path, name: str) -> None:
    found = verdict(tmp_path, CAUSE + LINES[name][0] + "".join(WAIT.format(rank, rank) for rank in (0, 1, 3)))
    assert (found["class"], [one["rank"] for one in found["culprits"]]) == ("rank-exception", [2])
