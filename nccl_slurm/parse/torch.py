"""torch's C++ lines beyond a row: the process group part, collective fingerprints, store keys.

Forms of the group part: ``[Rank 3]`` (to 2.2), ``[PG 1 Rank 0]`` (2.3), ``[PG 0 (default_pg) Rank 7]`` (2.4),
``[PG ID 12 PG GUID 99(NAME) Rank 4]`` (2.5+). The rank there is the rank in the group. PG ID counts per process: the
same id on two ranks can be two groups; only the GUID (``pg``) is shared.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from nccl_slurm.parse.patterns import MATCH_LIMIT, Row, Rows

__all__ = ["progress", "refine"]

#: GUID of the default group.
DEFAULT = "0"
_GROUP = re.compile(
    r"\[(?:PG ID (?P<id>\d{1,9}) PG GUID (?P<guid>[^\s(\]]{1,80})(?:\((?P<name>[^)\]]{0,120})\))?"
    r"|PG (?P<old>\d{1,9})(?: \((?P<old_name>[^)\]]{0,120})\))?) Rank (?P<rank>\d{1,8})\]"
)
_GROUP_RANK = re.compile(r"\[Rank (\d{1,8})\]")
_CALL = (
    ("seq", re.compile(r"SequenceNumber=(\d{1,18})")),
    ("op", re.compile(r"OpType=(\w{1,60})")),
    ("shape", re.compile(r"TensorShape=\[([\d, ]{0,400})\]")),
    ("dtype", re.compile(r"TensorDtypes=(\w{1,40})")),
)
_STORE_KEY = re.compile(r"/default_pg/\d+//\w+//\d+/(\d{1,8})\s*$")


def refine(row: Row, data: dict[str, Any], text: str, rows: Rows) -> tuple[str, str | None]:
    _group(text[:MATCH_LIMIT], data)
    if row.id == "torch.mismatch":
        for side in ("a", "b"):
            data.update(_call(str(data.pop(f"call_{side}", "")), side))
    if row.id == "torch.store-wait":
        key = _STORE_KEY.search(str(data.get("keys", "")))
        if key is not None:
            data["missing"] = [int(key.group(1))]
    if row.id == "torch.client-timeout" and "timeout" in data:
        data["timeout_ms"] = data.pop("timeout") * (1000 if data.pop("unit") == "s" else 1)
    return row.role, row.hint


def progress(data: Mapping[str, Any]) -> tuple[str, dict[str, int]] | None:
    """(GUID, counters) of a line that has both; a group known by its id alone is not comparable over ranks."""
    counters = {key: data[key] for key in ("enqueued", "started", "completed") if isinstance(data.get(key), int)}
    if "pg" not in data or not counters:
        return None
    return str(data["pg"]), counters


def _group(text: str, data: dict[str, Any]) -> None:
    match = _GROUP.search(text)
    if match is None:
        bare = _GROUP_RANK.search(text)
        if bare is not None:
            data.setdefault("group_rank", int(bare.group(1)))
        return
    part = match.groupdict()
    data.setdefault("group_rank", int(part["rank"]))
    data["pg_id"] = int(part["id"] or part["old"])
    name = part["name"] or part["old_name"]
    if name:
        data["pg_name"] = name
    if part["guid"] or name == "default_pg":
        data["pg"] = part["guid"] or DEFAULT


def _call(fingerprint: str, side: str) -> dict[str, Any]:
    """``CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, …)`` → seq_a, op_a, shape_a, dtype_a."""
    found: dict[str, Any] = {}
    for name, form in _CALL:
        match = form.search(fingerprint)
        if match is not None:
            found[f"{name}_{side}"] = int(match.group(1)) if name == "seq" else match.group(1)
    return found
