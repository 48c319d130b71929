"""Names and sizes out of closed sets; what a laptop can't hold is scaled down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.repro.call import BYTES_MAX, Call, call_of, held, operation_of, scaled
from nccl_slurm.repro.scene import CODE


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ALLREDUCE", "all_reduce"),
        ("ALLREDUCE_COALESCED", "all_reduce"),
        ("_ALLGATHER_BASE", "all_gather_into_tensor"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter_tensor"),
        ("ALLTOALL_BASE", "all_to_all_single"),
        ("COALESCED", "coalesced"),
        ("RECVANYSOURCE", "recv"),
        ("nccl:_all_gather_base", "all_gather_into_tensor"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather_into_tensor"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send"),
        ("gloo:all_to_all", "all_to_all"),
        ("AllReduce", "all_reduce"),
        ("UNKNOWN", None),
        ("", None),
        ("_coalesced", "coalesced"),
        ("all_reduce(x); import os", None),
        ("__import__", None),
    ],
)
def test_operations(name: str, operation: str | None) -> None:
    assert operation_of(name) == operation


@pytest.mark.parametrize(
    ("texts", "call"),
    [
        (("ALLREDUCE", "64, 64", "BFloat16"), Call("all_reduce", (64, 64), "bfloat16")),
        (("BARRIER", "", ""), Call("barrier")),
        (("BROADCAST", "0, 4", "Float"), Call("broadcast", None, "float32")),
        (("BROADCAST", "4, -1", "QInt8"), Call("broadcast")),
        (("BROADCAST", ", ".join("2" * 17), "float32"), Call("broadcast")),
        (("BROADCAST", "9" * 19, "Float"), Call("broadcast", None, "float32")),
        (("BROADCAST", "٣", "Half"), Call("broadcast", None, "float16")),
    ],
)
def test_what_is_not_a_number_or_a_known_name_is_not_told(texts: tuple[str, str, str], call: Call) -> None:
    assert call_of(*texts) == call


@pytest.mark.parametrize(
    ("call", "nproc", "made"),
    [
        (Call(), 2, Call("all_reduce", (4,), "float32")),
        (Call("coalesced", (8,)), 2, Call("all_reduce", (8,), "float32")),
        (Call("all_reduce", (8388608,)), 2, Call("all_reduce", (8388608,), "float32")),
        (Call("all_reduce", (466119168,)), 2, Call("all_reduce", (58264896,), "float32")),
        (Call("broadcast", (70000, 70000), "bfloat16"), 2, Call("broadcast", (8750, 8750), "bfloat16")),
        (Call("all_gather", (16384000,)), 8, Call("all_gather", (4096000,), "float32")),
        (Call("reduce_scatter_tensor", (3, 5)), 4, Call("reduce_scatter_tensor", (4, 5), "float32")),
        (Call("all_to_all_single", (1, 7)), 2, Call("all_to_all_single", (2, 7), "float32")),
        (Call("barrier"), 2, Call("barrier", (4,), "float32")),
    ],
)
def test_scaled(call: Call, nproc: int, made: Call) -> None:
    assert scaled(call, nproc) == made


@given(
    st.sampled_from(sorted(CODE)),
    st.lists(st.integers(1, 10**18 - 1), min_size=1, max_size=16).map(tuple),
    st.sampled_from(["float32", "complex128", "bool", None]),
    st.integers(2, 64),
)
def test_scaled_holds_the_limit_and_divides(op: str, shape: tuple[int, ...], dtype: str | None, nproc: int) -> None:
    made = scaled(Call(op, shape, dtype), nproc)
    assert held(made, nproc) <= BYTES_MAX
    assert made.shape is not None and len(made.shape) == len(shape) and min(made.shape) >= 1
    if op in ("reduce_scatter_tensor", "all_to_all_single"):
        assert made.shape[0] % nproc == 0
