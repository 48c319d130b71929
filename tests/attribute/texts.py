"""What ranks and their agent print, and the verdict of a file that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nccl_slurm.cli.logs import report_of_logs

__all__ = ["ended", "verdict", "waited"]


def waited(rank: int) -> str:
    """Until 12:00, since 11:50."""
    return (
        f"[rank{rank}]:[E1130 12:00:00.715298746 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=5000, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for "
        "600017 milliseconds before timing out.\n"
    )


def ended(*codes: int) -> str:
    """By one agent: its closing signals, and its table of all ranks."""
    closing = "".join(
        f"W1130 12:00:04.000000 500 torch/distributed/elastic/multiprocessing/api.py:900] Sending process {10 + rank} "
        "closing signal SIGTERM\n"
        for rank, code in enumerate(codes)
        if code == -15
    )
    rows = "".join(
        f"[{rank}]:\n  time      : 2026-11-30_12:00:05\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {10 + rank})\n  error_file: <N/A>\n  traceback : none\n"
        for rank, code in enumerate(codes)
    )
    return f"{closing}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nFailures:\n{rows}"


def verdict(folder: Path, text: str, *, world: int = 4) -> dict[str, Any]:
    (folder / "job.log").write_text(f"world_size={world}\n{text}")
    found: dict[str, Any] = report_of_logs(str(folder))["verdict"]
    return found
