"""From files as NCCL and torch write them to the report: four nodes, two ranks each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from nccl_slurm.cli.logs import report_of_logs
from tests.report.test_report import SCHEMA

#: On n2 GPUDirect is off, n3 has no InfiniBand, rank 5 an older NCCL; rank 6 never finished its init.
_NET = {1: "NET/IB/0/GDRDMA", 2: "NET/IB/0", 3: "NET/Socket/0", 4: "NET/IB/0/GDRDMA"}


def _lines(rank: int, *, odd: bool) -> Iterator[str]:
    node = rank // 2 + 1
    start = f"n{node}:{800 + rank}:{900 + rank} [{rank % 2}] NCCL INFO "
    comm = f"ncclCommInitRank comm 0x55d0a{rank} rank {rank} nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa1b2c3"
    way = _NET[node] if odd else _NET[1]
    yield f"{start}NCCL version {'2.20.5' if odd and rank == 5 else '2.21.5'}+cuda12.4"
    yield f"{start}NCCL_IB_TIMEOUT set by environment to 22."
    yield f"{start}Using network {way.split('/')[1]}"
    yield f"{start}{comm} - Init START"
    if rank % 2 == 0:
        yield f"{start}Channel 00/0 : {rank}[0] -> {rank + 1}[1] via P2P/CUMEM"
    else:
        yield f"{start}Channel 00/0 : {rank}[1] -> {(rank + 1) % 8}[0] [send] via {way}"
    if not odd or rank != 6:
        yield f"{start}{comm} - Init COMPLETE"
    yield (
        f"[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=60000) ran "
        "for 60033 milliseconds before timing out."
    )


def _write(folder: Path, *, odd: bool) -> str:
    for rank in range(8):
        path = folder / f"nccl.n{rank // 2 + 1}.{800 + rank}.log"
        path.write_text("\n".join(_lines(rank, odd=odd)) + "\n")
    return str(folder)


def test_what_differs_is_told_and_accuses_nobody(tmp_path: Path) -> None:
    report = report_of_logs(_write(tmp_path, odd=True))
    jsonschema.validate(report, SCHEMA)
    told = "\n".join(step["text"] for step in report["inferences"])
    for words in (
        "Communicator 0xa1b2c3 of 8 ranks: init began on 8, finished on 7; open on rank 6 (n4).",
        "Nodes differ in the network: IB on n[1-2,4], Socket on n3 (odd: n3).",
        "Nodes differ in the path between nodes in communicator 0xa1b2c3: NET/IB/GDRDMA on n[1,4], NET/IB on n2, "
        "NET/Socket on n3. First: 3 -> 4 via NET/IB.",
        "The version of nccl differs: 2.21.5 on ranks 0-4,6-7, 2.20.5 on rank 5 (n3) (odd: rank 5 (n3)).",
        "A queue pair may retry for 120 s, longer than the process group waits (60 s)",
    ):
        assert words in told
    assert not report["verdict"]["culprits"] and not report["verdict"]["suspects"]
    facts = {fact["id"]: fact for fact in report["facts"]}
    assert all(facts[fact]["line"] for step in report["inferences"] for fact in step["from"])


def test_keys_of_the_report(tmp_path: Path) -> None:
    report = report_of_logs(_write(tmp_path, odd=True))
    assert report["transport"] == {
        "IB": [0, 1, 2, 3, 6, 7],
        "NET/IB": [3],
        "NET/IB/GDRDMA": [1, 7],
        "NET/Socket": [5],
        "P2P/CUMEM": [0, 2, 4, 6],
        "Socket": [4, 5],
    }
    assert report["versions"] == {
        "cuda": {"12.4": [0, 1, 2, 3, 4, 5, 6, 7]},
        "nccl": {"2.20.5": [5], "2.21.5": [0, 1, 2, 3, 4, 6, 7]},
    }
    assert [(one["layer"], one["seconds"]) for one in report["timeouts"]] == [
        ("InfiniBand retries", pytest.approx(120.26, rel=1e-4)),
        ("collective", 60.0),
    ]


def test_ranks_that_are_alike_need_no_word(tmp_path: Path) -> None:
    report = report_of_logs(_write(tmp_path, odd=False))
    rules = {step["rule"] for step in report["inferences"]}
    assert rules == {"hang.unattributed", "timeout.retries", "timeout.hidden", "timeout.layer"}
