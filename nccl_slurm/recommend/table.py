"""The decision table as rows for ``nccl-slurm rules list``: what is printed is what decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nccl_slurm.history.reasons import Reasons
from nccl_slurm.recommend.judgement import HARDWARE
from nccl_slurm.recommend.policy import FaultRow, Policy

__all__ = ["KEYS", "faults", "limits", "reasons", "xids"]

#: Of each row that decides; ``after``: the step after one reboot that did not help, after two, ….
KEYS = ("action", "after", "final", "hardware", "nvidia", "investigatory")


def xids(policy: Policy) -> Iterator[dict[str, Any]]:
    for code, xid in sorted(policy.xids.items()):
        hardware = xid.hint in HARDWARE and not xid.unused
        decides = (xid.action, list(xid.after), xid.final, hardware, xid.nvidia, xid.investigatory)
        row = {"id": f"xid.{code}", "producer": "kernel", "class": xid.hint, "role": xid.role, "source": xid.source}
        yield {**row, **dict(zip(KEYS, decides, strict=True))}


def faults(policy: Policy) -> dict[str, dict[str, Any]]:
    """By id, in the order of the file."""
    return {row.id: _fault(row) for row in policy.faults}


def limits(policy: Policy) -> Iterator[dict[str, Any]]:
    """``value`` in the unit that the id ends in."""
    for limit in policy.limits.values():
        row = {"id": f"limit.{limit.id}", "producer": None, "class": None, "role": None, "source": limit.source}
        yield {**row, **dict.fromkeys(KEYS), "value": limit.value, "means": limit.means}


def reasons(known: Reasons) -> Iterator[dict[str, Any]]:
    """Of nodes, in the order in which they are asked. ``producer``: whose words they are."""
    for row in known.rows:
        told = {"producer": row["owner"], "class": row.get("class"), "role": None, "source": row["source"]}
        hardware = row["hardware"] if isinstance(row["hardware"], bool) else None
        yield {"id": f"reason.{row['id']}", **told, **dict.fromkeys(KEYS), "hardware": hardware, "means": row["means"]}


def _fault(row: FaultRow) -> dict[str, Any]:
    decides = (row.action, list(row.after), row.final, row.hardware, None, None)
    base = {"id": row.id, "producer": row.id.partition(".")[0], "class": row.failure_class, "role": None}
    return {**base, "source": row.source, **dict(zip(KEYS, decides, strict=True))}
