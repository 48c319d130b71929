from __future__ import annotations

import pytest

from nccl_slurm.info.timeout import found, retries, unread
from nccl_slurm.model import Fact
from tests.info.lines import info, read

GAVE_UP = (
    "n1:812:920 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<41200> with "
    "status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_0"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[rank3]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600033 "
            "milliseconds before timing out.",
            [("collective", 600.0)],
        ),
        (
            "I20241209 23:39:42.495619 138559 ProcessGroupNCCL.cpp:905] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL "
            "initialization options: size: 2, global rank: 1, TIMEOUT(ms): 1800000, USE_HIGH_PRIORITY_STREAM: 0",
            [("collective", 1800.0)],
        ),
        ("TIMEOUT(ms): 600000", [("collective", 600.0)]),
        (
            "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:1000] ProcessGroupNCCL's watchdog got stuck for "
            "480 seconds without making progress in monitoring enqueued collectives.",
            [("heartbeat", 480.0)],
        ),
        (
            "ProcessGroupNCCL environments: NCCL version: 2.20.5, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: 60000, "
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 600",
            [("heartbeat", 600.0), ("flight recorder dump", 60.0)],
        ),
        ("timed out after waiting for 60000ms flight recorder dumps to finish.", [("flight recorder dump", 60.0)]),
        (
            "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/3",
            [("store", 12.0)],
        ),
        ("[c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500).", [("store", 60.0)]),
        (
            "TCP client failed to connect/validate to host n1:29500 - timed out (try=1, timeout=600000ms): timed out",
            [("store", 600.0)],
        ),
        ("Timed out after 6 seconds waiting for workers. 1/2 workers joined.", [("store", 6.0)]),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms", [("monitored barrier", 2.0)]),
        ("RuntimeError: Timed out waiting 10000ms for recv operation to complete", [("collective", 10.0)]),
        ("srun: First task exited 30s ago", [("first exit of a task", 30.0)]),
        ("srun: First task exited. Terminating job in 60s", [("first exit of a task", 60.0)]),
        (
            "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
            [("end of a step", 62.0)],
        ),
        ("NCCL_IB_TIMEOUT=14", [("InfiniBand retries", pytest.approx(0.4698, rel=1e-3))]),
        ("NCCL_TIMEOUT=3600", []),
        ("n1:8:8 [0] NCCL INFO Using network IB", []),
    ],
)
def test_found(line: str, expected: list[tuple[str, float]]) -> None:
    assert [(one.layer.name, one.seconds) for one in found([read(line)])] == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        # NCCL's documents: 20 and 7 make about 30 seconds
        ([info(0, "NCCL_IB_TIMEOUT set by environment to 20.")], [(20, 7, "= 30.1 s (34.4 s with the first attempt)")]),
        (
            [
                info(0, "NCCL_IB_TIMEOUT set by environment to 22."),
                info(0, "NCCL_IB_RETRY_CNT set by environment to 3."),
            ],
            [(22, 3, "4.096 µs × 2^22 × 3 retries = 51.5 s (68.7 s with the first attempt)")],
        ),
        ([info(0, "NCCL_IB_TIMEOUT set by environment to 0.")], [(0, 7, "NCCL_IB_TIMEOUT=0 is no limit at all")]),
        ([info(0, "NCCL_IB_TIMEOUT set by environment to 32.")], [(32, 7, "no limit at all")]),
        ([info(0, "NCCL_IB_TIMEOUT set by environment to abc")], []),
        # the default of the version, where a queue pair gave up
        ([info(0, "NCCL version 2.21.5+cuda12.4")], []),
        ([info(0, "NCCL version 2.21.5+cuda12.4"), read(GAVE_UP)], [(18, 7, "= 7.52 s")]),
        ([info(0, "NCCL version 2.23.4+cuda12.4"), read(GAVE_UP)], [(20, 7, "= 30.1 s")]),
        ([info(0, "NCCL version 2.12.12+cuda11.6"), read(GAVE_UP)], [(14, 7, "= 0.47 s")]),
        ([read(GAVE_UP)], []),
        # two counts: which belongs to which timeout is not known
        (
            [
                info(0, "NCCL_IB_TIMEOUT set by environment to 22."),
                info(0, "NCCL_IB_RETRY_CNT set by environment to 3."),
                info(1, "NCCL_IB_RETRY_CNT set by environment to 7."),
            ],
            [],
        ),
    ],
)
def test_retries(facts: list[Fact], expected: list[tuple[int, int, str]]) -> None:
    one = retries(facts)
    assert [(r.exponent, r.count) for r in one] == [(exponent, count) for exponent, count, _ in expected]
    assert all(words in r.formula for r, (_, _, words) in zip(one, expected, strict=True))


def test_unread() -> None:
    facts = [read("export NCCL_TIMEOUT=3600"), read("NCCL_IB_TIMEOUT=22")]
    assert list(unread(facts)) == ["NCCL_TIMEOUT"]
