"""One collective call: its operation, shape and dtype, read from a closed set of names and from numbers alone.

Logs are hostile, and what is read here becomes program text: a name that is not in a table is *not told*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

__all__ = ["BYTES_MAX", "UNTOLD", "Call", "call_of", "dtype_of", "held", "operation_of", "scaled"]

#: What one process may hold in tensors for one call; a laptop runs several.
BYTES_MAX = 256 << 20
DIMENSIONS_MAX = 16
#: Of a number in a log; larger ones are no size.
_DIGITS_MAX = 18

#: torch's OpType (c10d/Work.hpp), its profiling names (``nccl:_all_gather_base``) and NCCL's own names, in small
#: letters without ``_``, without the backend and without ``coalesced`` → function of torch.distributed.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allreducesparse": "all_reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather_into_tensor",
    "allgatherintotensor": "all_gather_into_tensor",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter_tensor",
    "reducescattertensor": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "coalesced": "coalesced",  # several in one; no line tells which
}
#: Name in fingerprints and flight recorder dumps (c10/core/ScalarType.h) → name in Python, bytes of an element.
_DTYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
}
_SIZES = dict(_DTYPES.values())
#: Their first dimension is cut into one part a rank.
_DIVIDED = frozenset({"reduce_scatter_tensor", "all_to_all_single"})
_BACKEND = re.compile(r"(?:nccl|gloo|ucc|mpi|xccl|hccl):")


@dataclass(frozen=True)
class Call:
    """``op``: function of torch.distributed, None where no line tells it. ``shape``: of the rank's own tensor, None
    where no size is told. ``dtype``: name in torch, None where not told (watchdog lines never tell it).
    """

    op: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    def __str__(self) -> str:
        """``all_reduce of [64, 64] bfloat16``; what is not told is left out."""
        of = " ".join(part for part in (str(list(self.shape)) if self.shape else "", self.dtype or "") if part)
        return f"{self.op or 'a collective'}{f' of {of}' if of and self.op != 'barrier' else ''}"


#: No line tells anything of it.
UNTOLD = Call()


def call_of(op: str | None, shape: str | None = None, dtype: str | None = None) -> Call:
    """From texts as a log has them: ``_ALLGATHER_BASE``, ``359, 1, 16``, ``BFloat16``."""
    return Call(operation_of(op or ""), _shape(shape or ""), dtype_of(dtype or ""))


def operation_of(name: str) -> str | None:
    bare = _BACKEND.sub("", name.split(" ")[0]).replace("_", "").lower()
    return _OPERATIONS.get(bare[: -len("coalesced")] if bare.endswith("coalesced") else bare, _OPERATIONS.get(bare))


def dtype_of(name: str) -> str | None:
    return _DTYPES[name][0] if name in _DTYPES else None


def held(call: Call, nproc: int) -> int:
    """Bytes of tensors in one process: the rank's own and those for what it gets."""
    copies = 1 if call.op in ("all_reduce", "broadcast", "reduce", "send", "recv") else nproc + 1
    return prod(call.shape or (1,)) * _SIZES[call.dtype or "float32"] * copies


def scaled(call: Call, nproc: int) -> Call:
    """The call as ``nproc`` processes on a laptop can make it.

    What is not told becomes ``all_reduce`` of four elements of ``float32``; a first dimension that the operation cuts
    into parts is made a multiple of ``nproc``; the largest dimensions are halved until `BYTES_MAX` holds.
    """
    shape = list(call.shape or (4,))
    if call.op in _DIVIDED:
        shape[0] = -(-shape[0] // nproc) * nproc
    op = "all_reduce" if call.op in (None, "coalesced") else call.op
    made = Call(op, tuple(shape), call.dtype or "float32")
    while held(made, nproc) > BYTES_MAX:
        least = [nproc if call.op in _DIVIDED else 1] + [1] * (len(shape) - 1)
        largest = max((size, at) for at, size in enumerate(shape) if size > least[at])[1]
        shape[largest] = -(-shape[largest] // 2 // least[largest]) * least[largest]
        made = replace(made, shape=tuple(shape))
    return made


def _shape(text: str) -> tuple[int, ...] | None:
    """None too for a tensor without elements: a size of 0 is how some lines say that they don't know it."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > DIMENSIONS_MAX or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    sizes = tuple(int(part) for part in parts if len(part) <= _DIGITS_MAX)
    return sizes if len(sizes) == len(parts) and all(sizes) else None
