"""Variables of a rank that our TaskProlog set, and nobody since: what they do to a job is no fault of its owner."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["ours"]

_LIST = "NCCL_SLURM_SET"
_FOLDER = r"/.*/[0-9]+\.[0-9]+/user/"
_NUMBER = re.compile(r"[1-9][0-9]*")
_ON = re.compile("1")
#: Name → the values that slurm/task_prolog gives it, where capture.conf asks for no other ones of NCCL's. The list
#: stays as it is where a script sets another value later: that one is the user's.
_VALUES: Mapping[str, re.Pattern[str]] = {
    "NCCL_DEBUG": re.compile("WARN|INFO|VERSION"),
    "NCCL_DEBUG_SUBSYS": re.compile("INIT,BOOTSTRAP,ENV(?:,NET(?:,COLL)?)?"),
    "NCCL_DEBUG_FILE": re.compile(_FOLDER + r"nccl\.%h\.%p\.log"),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": re.compile(".*"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _NUMBER,
    "TORCH_FR_BUFFER_SIZE": _NUMBER,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": _ON,
    "TORCH_FR_DUMP_ON_TIMEOUT": _ON,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": re.compile(_FOLDER + "nccl_trace_rank_"),
    "TORCH_FR_DUMP_TEMP_FILE": re.compile(_FOLDER + "nccl_trace_rank_"),
}


def ours(environment: Mapping[str, str]) -> frozenset[str]:
    listed = set(environment.get(_LIST, "").split(","))
    given = ((name, environment.get(name)) for name in _VALUES.keys() & listed)
    return frozenset(name for name, value in given if value is not None and _VALUES[name].fullmatch(value))
