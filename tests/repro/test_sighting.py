"""Which calls single lines tell of, and of whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.repro.call import Call
from nccl_slurm.repro.sighting import Sighting, sightings, usual

_TENSOR = "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, pinned_memory=false (default))"


def fact(text: str, producer: str = "torch", rank: int | None = None, number: str = "f1") -> dict[str, Any]:
    return {
        "id": number,
        "text": text,
        "producer": producer,
        "rank": rank,
        "kind": "",
        "file": "a",
        "line": 1,
        "role": "cause",
    }


WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL({}, Timeout(ms)=600000) ran for 600027 milliseconds"
PRINT = "Rank {} is running collective: CollectiveFingerPrint({})"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(
            fact(WATCHDOG.format("SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64"), rank=3),
            [Sighting(Call("all_reduce", (64,)), "f1", 3, 7)],
            id="watchdog",
        ),
        pytest.param(
            fact(
                "[PG ID 2 PG GUID 12(DP) Rank 3] " + WATCHDOG.format("SeqNum=7, OpType=GATHER, NumelIn=0, NumelOut=9")
            ),
            [Sighting(Call("gather", (9,)), "f1", None, 7, "12")],
            id="watchdog of a group, the size on the output's side",
        ),
        pytest.param(
            fact(WATCHDOG.format("OpType=BROADCAST")), [Sighting(Call("broadcast"), "f1", None)], id="old watchdog"
        ),
        pytest.param(fact(WATCHDOG.format("SeqNum=7, OpType=SYSTEM, NumelIn=1, NumelOut=1")), [], id="no operation"),
        pytest.param(
            fact(
                "RuntimeError: Detected mismatch between collectives on ranks. "
                + PRINT.format(
                    0, f"SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[8, 9], TensorDtypes=Float, {_TENSOR}"
                )
                + ", but "
                + PRINT.format(1, "SequenceNumber=5OpType=BARRIER")
                + ".Collectives differ in the following aspects: \t Op type: ALLREDUCEvs BARRIER"
            ),
            [Sighting(Call("all_reduce", (8, 9), "float32"), "f1", 0, 5), Sighting(Call("barrier"), "f1", 1, 5)],
            id="both sides of a fingerprint",
        ),
        pytest.param(
            fact(
                "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: "
                "CollectiveFingerPrint(SequenceNumber=2, OpType=BROADCAST, TensorShape=[3], TensorDtypes=Long, ...)",
                "python",
                4,
            ),
            [Sighting(Call("broadcast", (3,), "int64"), "f1", 4, 2)],
            id="the fingerprint of a rank that waits in DETAIL's own barrier",
        ),
        pytest.param(
            fact(
                "flight recorder: group 12 DP: x: nccl:all_reduce 5 open, 8 ranks, in [[64, 4]] ['BFloat16'], "
                "out [[64, 4]] ['BFloat16']; then 6 nccl:broadcast [[3]]",
                "flight-recorder",
                1,
            ),
            [Sighting(Call("all_reduce", (64, 4), "bfloat16"), "f1", 1, 5, "12", Call("broadcast", (3,)), 8)],
            id="dump",
        ),
        pytest.param(
            fact("flight recorder: group 0 default_pg: gloo:barrier 5 open, in [] [], out [] []", "flight-recorder", 1),
            [Sighting(Call("barrier"), "f1", 1, 5, "0")],
            id="dump without tensors",
        ),
        pytest.param(
            fact("flight recorder: group 0 default_pg: enqueued 5, started 4, completed 4", "flight-recorder"),
            [],
            id="status",
        ),
    ],
)
def test_lines(line: dict[str, Any], found: list[Sighting]) -> None:
    assert sightings([line]) == found


@given(st.text(max_size=300), st.sampled_from(["torch", "flight-recorder", "python"]))
def test_any_text_is_read_without_an_error(text: str, producer: str) -> None:
    sightings([fact(f"Rank 1 is running collective: CollectiveFingerPrint({text}", producer)])
    sightings([fact(f"flight recorder: group {text}", producer), fact(f"WorkNCCL(OpType={text}", producer)])


def test_the_usual_call_is_that_of_most_ranks_whatever_they_repeat() -> None:
    small, large = Call("all_reduce", (1,)), Call("all_reduce", (2,))
    told = [Sighting(small, "f1", 0), Sighting(small, "f2", 0), Sighting(large, "f3", 1), Sighting(large, "f4", 2)]
    assert usual(told) == told[2]
    assert usual([]) is None
