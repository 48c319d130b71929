"""Environment settings as the logs show them: NCCL_*, FI_*, TORCH_*."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nccl_slurm.model import Fact

__all__ = ["KINDS", "OF_ONE_PROCESS", "READ_BY_NCCL", "settings"]

#: NCCL prints a variable only if it is set, when it first reads it.
READ_BY_NCCL = "nccl.env"
_PRINTED = frozenset({READ_BY_NCCL, "ofi.setting", "framework.setting"})
#: torch prints all its own in one line, defaults too.
_LISTED = "torch.environment"
KINDS = _PRINTED | {_LISTED}
_PAIR = re.compile(r"\b(TORCH_[A-Z0-9_]{1,60})(?: \([^)]{0,120}\))?: ([^,\s]{1,100})")
#: These differ between processes by design.
OF_ONE_PROCESS = frozenset(
    {
        "NCCL_COMM_ID",
        "NCCL_DEBUG_FILE",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_HOSTID",
        "NCCL_TOPO_DUMP_FILE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    }
)


def settings(facts: Iterable[Fact]) -> Iterator[tuple[str, str, Fact]]:
    """(name, value, line that says so); values without quotes."""
    for fact in facts:
        if fact.kind == _LISTED:
            for name, value in _PAIR.findall(str(fact.data.get("settings", ""))):
                yield name, value, fact
        elif fact.kind in _PRINTED and fact.data.get("name"):
            yield str(fact.data["name"]), _bare(str(fact.data.get("value", ""))), fact


def _bare(value: str) -> str:
    return value.strip().strip("'\"")[:100]
