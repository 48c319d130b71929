"""Logs without a job: whom of the machines, ranks and tasks that a folder seems to tell of a report may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.logs import report_of_logs
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.report.text import render
from nccl_slurm.repro.call import Call
from nccl_slurm.repro.material import Material


def _block(rank: int) -> str:
    """Of torchrun's table: the agent ended ranks 2 and 3."""
    return (
        f"[{rank}]:\n  time      : 2026-11-30_12:00:05\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {-15 if rank > 1 else 1} (pid: {10 + rank})\n  error_file: <N/A>\n  traceback : none\n"
    )


def _closing(pid: int) -> str:
    at = "W1130 12:00:04.000000 500 torch/distributed/elastic/multiprocessing/api.py:900]"
    return f"{at} Sending process {pid} closing signal SIGTERM\n"


_NOV = "Nov {} {}:03:41 {} kernel: "
_LOST = _NOV + "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
_BARE = "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
_KILLED = _NOV + "Memory cgroup out of memory: Killed process 99 (rsync) total-vm:1kB\n"
_RAISED = "[rank3]: Traceback (most recent call last):\n[rank3]:   File 't.py'\n[rank3]: ValueError: bad shard\n"
_ECC = "[rank3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_FIRST = "world_size=4\n2026-11-30 12:00:00,100 [rank0]: ValueError: first\n"
_DUPLICATE = (
    "world_size=4\n[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3356, "
    "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
    "[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank1]: Last error:\n"
    "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000\n"
)
_ENDED = "".join(map(_closing, (12, 13))) + (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    + "=" * 60
    + "\ntrain.py FAILED\n"
    + "-" * 60
    + "\nFailures:\n"
    + "".join(map(_block, (1, 2, 3)))
    + "-" * 60
    + "\nRoot Cause (first observed failure):\n"
    + _block(0)
    + "=" * 60
    + "\n"
)


def _waits(rank: int) -> str:
    return (
        f"2026-11-30 11:00:00 step 4999\n[rank{rank}]:[E1130 12:00:00.715298746 ProcessGroupNCCL.cpp:632] "
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5000, OpType=ALLREDUCE, "
        "NumelIn=1000, NumelOut=1000, Timeout(ms)=600000) ran for 600017 milliseconds before timing out.\n"
    )


def _ranks(first: str, second: str, last: str = _RAISED) -> dict[str, str]:
    """Ranks 0 and 1 in one folder, 2 and 3 in the other; rank 3 failed, the others waited."""
    waits = {f"{first}/rank_{r}.log": _waits(r) for r in (0, 1)}
    return {**waits, f"{second}/rank_2.log": _waits(2), f"{second}/rank_3.log": "world_size=4\n" + last}


#: name → files; the class; the culprits as (rank, host), all of them proven, or none.
CASES: dict[str, tuple[dict[str, str], str, list[tuple[int | None, str | None]]]] = {
    "a kernel log that has the hour of the run": (
        {**_ranks("n1", "n2"), "n1/kern.log": _LOST.format(30, 11, "n1")},
        "gpu-hw-lost",
        [(None, "n1")],
    ),
    "a kernel log of weeks ago": (
        {**_ranks("n1", "n2"), "n1/kern.log": _LOST.format("02", "05", "n1")},
        "rank-exception",
        [(3, "n2")],
    ),
    "a kernel log of weeks and of the hour": (
        {**_ranks("n1", "n2"), "n1/kern.log": _LOST.format("02", "05", "n1") + _LOST.format(30, 11, "n1")},
        "gpu-hw-lost",
        [(None, "n1")],
    ),
    "a kernel log of hours ago: another zone's, or of another job": (
        {**_ranks("n1", "n2"), "n1/kern.log": _LOST.format(30, "03", "n1")},
        "rank-exception",
        [(3, "n2")],
    ),
    "a kernel log without times beside a job": (
        {"job.log": _FIRST, "n1/dmesg.log": _BARE},
        "gpu-hw-lost",
        [],
    ),
    "a kernel log without times, of a folder that is a stage, beside a failure of its own": (
        {**{f"rank_{r}.log": _waits(r) for r in (0, 1, 2)}, "rank_3.log": "world_size=4\n" + _RAISED}
        | {"stage2/dmesg.log": _BARE},
        "rank-exception",
        [(3, None)],
    ),
    "a kernel log with times beside a job without": (
        {"job.log": "world_size=4\n[rank0]: ValueError: first\n", "n1/kern.log": _LOST.format(30, 11, "n1")},
        "gpu-hw-lost",
        [],
    ),
    "a kernel log alone, without times": ({"n1/dmesg.log": _BARE}, "gpu-hw-lost", [(None, "n1")]),
    "a kernel line that a rank prints, in one folder of all ranks": (
        {**{f"exp7/rank_{r}.log": _waits(r) for r in (0, 1, 2)}, "exp7/rank_3.log": "world_size=4\n" + _RAISED + _BARE},
        "rank-exception",
        [(3, None)],
    ),
    "a kernel log of a machine on which no rank ran": (
        {**_ranks("n1", "n2"), "n9/kern.log": _LOST.format(30, 11, "n9")},
        "rank-exception",
        [(3, "n2")],
    ),
    "a process that was killed for memory weeks ago": (
        {**_ranks("n1", "n2"), "n1/dmesg.log": _KILLED.format("01", "05", "n1")},
        "rank-exception",
        [(3, "n2")],
    ),
    "a process that was killed for memory in that hour": (
        {**_ranks("n1", "n2"), "n1/dmesg.log": _KILLED.format(30, 11, "n1")},
        "host-oom",
        [(None, "n1")],
    ),
    "folders that are stages": (_ranks("stage1", "stage2"), "rank-exception", [(3, None)]),
    "folders that are models": (_ranks("gpt2", "llama3", _ECC), "gpu-hw-ecc", [(3, None)]),
    "folders that NCCL names": (
        {**_ranks("n1", "n2", _ECC), "n1/nccl.log": "n1:1000:1000 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n"},
        "gpu-hw-ecc",
        [(3, "n2")],
    ),
    "numbers that count anew on each node, one file missing": (
        {f"n{node}/rank_{r}.log": "step 1\n" for node in (1, 2) for r in (0, 1, 2)} | {"n2/rank_3.log": _OOM},
        "cuda-oom",
        [],
    ),
    "numbers that go on, and a copy of one file": (
        {**_ranks("n1", "n2"), "saved/rank_0.log": _waits(0)},
        "rank-exception",
        [(3, None)],
    ),
    "one task a node, which may have started any number of ranks": (
        {
            "slurm-42.out": "0: step 1\n1: step 1\n1: " + _OOM + "srun: error: n2: task 1: Exited with exit code 1\n"
            "srun: error: n1: task 0: Terminated\n"
        },
        "cuda-oom",
        [],
    ),
    "several tasks a node": (
        {
            "slurm-42.out": "".join(f"{r}: step 1\n" for r in range(4))
            + "1: "
            + _OOM
            + "srun: error: n1: task 1: Exited with exit code 1\nsrun: error: n[1-2]: tasks 0,2-3: Terminated\n"
        },
        "cuda-oom",
        [(1, "n1")],
    ),
    "one task a node, and its lines name the rank too": (
        {
            "slurm-42.out": "0: step 1\n1: [rank1]: " + _OOM + "srun: error: n2: task 1: Exited with exit code 1\n"
            "srun: error: n1: task 0: Terminated\n"
        },
        "cuda-oom",
        [(1, "n2")],
    ),
    "a stamp with a zone and one without, of one node": (
        {"job.log": _FIRST + "2026-11-30T04:00:05Z [rank1]: KeyError: 'second'\n" + _ENDED},
        "rank-exception",
        [],
    ),
    "two stamps without a zone": (
        {"job.log": _FIRST + "2026-11-30 12:00:05,000 [rank1]: KeyError: 'second'\n" + _ENDED},
        "rank-exception",
        [(0, "n1")],
    ),
    "two ranks on one GPU, told by one of them": (
        {"job.log": _DUPLICATE + "".join(map(_closing, (10, 12, 13)))},
        "rank-exception",
        [],
    ),
    "a program that quotes srun": (
        {
            "job.log": "".join(map(_waits, (0, 1, 2)))
            + "[rank0]: note: Task launch for StepId=1.0 failed on node n7: Job credential expired\n"
            "[rank0]: srun: error: Task launch for StepId=1.0 failed on node n8: Job credential expired\n" + _RAISED
        },
        "rank-exception",
        [(3, None)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_proves_those_alone_that_its_lines_vouch_for(name: str, tmp_path: Path) -> None:
    files, failure_class, named = CASES[name]
    verdict = verdict_of(tmp_path, files)
    assert (verdict["class"], [(c["rank"], c["host"]) for c in verdict["culprits"]]) == (failure_class, named)


def verdict_of(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    found: dict[str, Any] = report_of_logs(str(folder))["verdict"]
    return found


_RAY = (
    "(TorchTrainer pid=1, ip=10.0.0.1) - (node_id=9a, ip=10.0.0.{}, pid={}) world_rank={}, local_rank={}, node_rank=0\n"
)
_WORKER = "(RayTrainWorker pid=4001, ip=10.0.0.2) "
_RAY_RAISED = "".join(
    _WORKER + line + "\n"
    for line in ("Traceback (most recent call last):", "  File 't.py', line 4", "ValueError: bad shard")
)


@pytest.mark.parametrize(
    ("started", "suspects"),
    [
        ([(1, 4000, 0), (1, 4001, 1), (2, 4000, 2), (2, 4001, 3)], [3]),
        ([(1, 4000, 0), (1, 4001, 1)], []),  # its list is cut off
        ([(2, 4000, 0), (2, 4001, 1), (2, 5000, 0), (2, 5001, 1)], []),  # two trainers, or one that was started again
    ],
    ids=["listed", "not listed", "listed twice"],
)
def test_rays_list_of_workers_tells_whose_lines_are(
    started: list[tuple[int, int, int]], suspects: list[int], tmp_path: Path
) -> None:
    listed = "".join(_RAY.format(node, pid, rank, pid % 1000) for node, pid, rank in started)
    found = verdict_of(tmp_path, {"job.log": listed + _RAY_RAISED})
    assert (found["class"], found["culprits"]) == ("rank-exception", [])
    assert [one["rank"] for one in found["suspects"]] == suspects


TRACEBACK = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/srv/train.py", line 90, in <module>
[rank{0}]:     main()
[rank{0}]:   File "/srv/train.py", line 38, in main
[rank{0}]:     dist.all_reduce(t)
[rank{0}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81, in wrapper
[rank{0}]:     return func(*args, **kwargs)
[rank{0}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2868, in all_reduce
[rank{0}]:     work.wait()
[rank{0}]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete
"""
RAISED = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/srv/train.py", line 11
[rank2]:     raise ValueError("bad batch 17")
[rank2]: ValueError: bad batch 17
"""


def test_where_in_the_program_tracebacks_end(tmp_path: Path) -> None:
    """And the reproduction takes the collective from there."""
    (tmp_path / "job.log").write_text("".join(TRACEBACK.format(rank) for rank in (0, 1, 3)) + RAISED)
    report = report_of_logs(str(tmp_path))
    told = [step["text"] for step in report["inferences"] if step["rule"] == "place.told"]
    assert told == [
        "Tracebacks of ranks 0-1,3 end at /srv/train.py line 38 in main, inside torch.distributed's all_reduce.",
        "The traceback of rank 2 ends at /srv/train.py line 11.",
    ]
    assert Material(report, load_rows()).called() == Call("all_reduce")
    assert "at /srv/train.py line 11" in render(report)


def test_an_agents_row_shows_how_its_worker_ended(tmp_path: Path) -> None:
    row = "  rank      : 3 (local_rank: 3)\n  exitcode  : -11 (pid: 5495)\n  traceback : Signal 11 (SIGSEGV)\n"
    (tmp_path / "job.log").write_text(row)
    (fact,) = report_of_logs(str(tmp_path))["facts"]
    assert (fact["kind"], fact["text"]) == ("elastic.failure", "  rank      : 3 (local_rank: 3), exitcode: -11")
