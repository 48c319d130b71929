"""NCCL's RAS client: the smaller group is listed, and it may be the one behind or the one ahead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm.parse import ras
from tests.parse.conftest import NOW, Read, kinds
from tests.parse.test_hostile import FACTS

TEXT = """\
NCCL version 2.28.3 compiled with CUDA 12.6
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3240 on node 10.0.0.2 managing GPUs 0,1

DEAD
  1 job process is considered dead (unreachable via the RAS network)

#1-0 (fa93daea854b060b) ERROR
  Asynchronous error on 1 rank
  Rank 4 -- GPU 4 managed by process 3234 on node 10.0.0.1

Warnings
========

#0-0 (00000000aaaa0001) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 31 has status ABORT -- GPU 7 managed by process 3231 on node 10.0.0.1

  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 639
  Rank 12 -- GPU 4 managed by process 3212 on node 10.0.0.1
  Rank 13 -- GPU 5 managed by process 3213 on node 10.0.0.1

  Communicator ranks have different AllReduce operation counts
  31 ranks have not launched any operations
  Rank 3 has launched up to operation 1 -- GPU 3 managed by process 3203 on node 10.0.0.1
#0-1 (00000000aaaa0002) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 5 -- GPU 0 managed by process 3200 on node 10.0.0.1
"""


def test_text_knows_communicator_operation_and_lead(read: Read) -> None:
    facts = read(("ras.txt", TEXT)).facts
    listed = [
        tuple(fact.data.get(key) for key in ("comm_hash", "op", "group_rank", "count", "lead", "status"))
        for fact in facts
        if fact.kind == "nccl.ras-rank"
    ]
    assert listed == [
        ("fa93daea854b060b", None, 4, None, None, None),
        ("00000000aaaa0001", "status", 31, None, None, "ABORT"),
        ("00000000aaaa0001", "AllGather", 12, 639, -1, None),
        ("00000000aaaa0001", "AllGather", 13, 639, -1, None),
        ("00000000aaaa0001", "AllReduce", 3, 1, 1, None),
        ("00000000aaaa0002", "AllReduce", 0, 5, None, None),
    ]
    assert all(fact.role == "context" and fact.rank is None and fact.host is None for fact in facts)


INIT = (
    "n1:{pid}:9 [2] NCCL INFO comm 0x5 rank {rank} nranks 32 cudaDev 2 busId {rank:x}b000 commId 0xa - Init COMPLETE\n"
)


def test_a_process_id_that_one_rank_has_finds_it(read: Read) -> None:
    init = "".join(INIT.format(pid=3200 + rank, rank=rank) for rank in range(32))
    parsed = read(("nccl.log", init), ("ras.txt", TEXT))
    ranks = [(fact.data["pid"], fact.rank) for fact in parsed.facts if fact.kind == "nccl.ras-rank"]
    assert ranks == [(3234, None), (3231, 31), (3212, 12), (3213, 13), (3203, 3), (3200, 0)]


def rank(number: int, count: int, *, error: int = 0, abort: bool = False) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": error, "finalize_called": False, "destroy_flag": False}
    return {
        "rank": number,
        "host": "10.0.0.1",
        "pid": 3200 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {**status, "abort_flag": abort},
        "collective_counts": {"Broadcast": 4, "AllReduce": count},
    }


def output(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    comm = {
        "hash": "0xa1",
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": list(ranks),
        "missing_ranks": list(missing),
    }
    return {
        "nccl_version": "2.30.7",
        "cuda_runtime_version": 12060,
        "cuda_driver_version": 12080,
        "timestamp": "2026-09-12 18:44:13",
        "communicators_count": 1,
        "communicators": [comm],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }


def said(value: dict[str, Any], read: Read) -> list[tuple[Any, ...]]:
    facts = read(("ras.json", json.dumps(value, indent=2))).facts
    FACTS(json.loads(json.dumps([fact.to_json() for fact in facts])))
    assert all(fact.line and fact.line > 5 and fact.offset and fact.time for fact in facts)
    keys = ("op", "group_rank", "count", "lead")
    return [(fact.kind.partition("-")[2], *(fact.data.get(key) for key in keys)) for fact in facts]


COMM = ("comm", None, None, None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (output(*(rank(n, 6) for n in range(4))), [COMM]),
        (
            output(rank(0, 6), rank(1, 6), rank(2, 5), rank(3, 6)),
            [
                COMM,
                ("mismatch", "AllReduce", None, None, None),
                ("count", "AllReduce", None, 6, None),
                ("rank", "AllReduce", 2, 5, -1),
            ],
        ),
        (
            output(rank(0, 5), rank(1, 6), rank(2, 5), rank(3, 5)),
            [
                COMM,
                ("mismatch", "AllReduce", None, None, None),
                ("count", "AllReduce", None, 5, None),
                ("rank", "AllReduce", 1, 6, 1),
            ],
        ),
        (
            output(rank(0, 5), rank(1, 6)),
            [COMM, ("mismatch", "AllReduce", None, None, None), ("count", "AllReduce", None, 5, None)],
        ),
        (output(rank(0, 5, error=6), rank(1, 5)), [COMM, ("error", None, 0, None, None)]),
        (output(rank(0, 5, abort=True), rank(1, 5)), [COMM, ("error", None, 0, None, None)]),
        (
            output(
                rank(0, 5), missing=({"rank": 1, "host": "unknown", "pid": -1, "status": {"considered_dead": True}},)
            ),
            [COMM, ("missing", None, 1, None, None)],
        ),
    ],
)
def test_json(value: dict[str, Any], expected: list[tuple[Any, ...]], read: Read) -> None:
    assert said(value, read) == expected


def test_json_that_is_cut_off_is_a_gap(read: Read) -> None:
    parsed = read(("ras.json", json.dumps(output(rank(0, 5)), indent=2)[:-20]))
    assert kinds(parsed) == [] and [gap.why for gap in parsed.gaps] == [
        "can't be read: RAS output that is no whole JSON"
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["communicators", "ranks", "missing_ranks", "rank", "hash", "size", "status", "collective_counts", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(value=JSON)
@settings(deadline=None)
def test_any_json(value: object) -> None:
    facts = ras.facts(json.dumps(value).encode(), "x", "job", NOW)
    FACTS(json.loads(json.dumps([fact.to_json() for fact in facts])))
