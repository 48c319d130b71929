"""The node record: ``nccl-slurm/node-record/1``, at most 4 MiB, cut with a gap."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Mapping

from nccl_slurm import __version__
from nccl_slurm.capture.facts import clean_gaps, gap, text
from nccl_slurm.capture.spool import Run

__all__ = ["MAX_BYTES", "assemble", "fit", "size_of"]

MAX_BYTES = 4 * 1024 * 1024
#: Room for gaps that say what was cut.
_MARGIN = 16384
#: What a cut takes first. Context of tens of thousands of lines goes before a single cause.
_CUT_ORDER = ("benign", "context", "consequence", "cause")


def assemble(run: Run, node: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """``parts``: the record's own keys but those that follow from ``run``; ``patterns`` goes into ``writer``."""
    prolog, epilog = run.prolog, run.epilog
    known = {**(prolog.env if prolog else {}), **(epilog.env if epilog else {})}
    record = {
        "schema": "nccl-slurm/node-record/1",
        "cluster": text(known.get("SLURM_CLUSTER_NAME"), 255),
        "job_id": run.job_id,
        "node": node,
        "closed_by": run.closed_by or "sweep",
        "written": time.time(),
        "writer": {
            "version": __version__[:40],
            "python": ".".join(map(str, sys.version_info[:3])),
            "patterns": text(parts.get("patterns"), 64),
        },
        "prolog": prolog.to_json() if prolog else None,
        "epilog": epilog.to_json() if epilog else None,
        **{key: value for key, value in parts.items() if key != "patterns"},
    }
    record["gaps"] = clean_gaps(record["gaps"])
    return fit(record, MAX_BYTES)


def size_of(value: Any) -> int:
    """Bytes as written: ASCII, no blanks."""
    return len(json.dumps(value, separators=(",", ":")))


def fit(value: dict[str, Any], limit: int) -> dict[str, Any]:
    """``value`` with facts, then what else can grow, left out until it has ``limit`` bytes at most, and gaps for it."""
    over = size_of(value) - (limit - _MARGIN)
    if over <= 0:
        return value
    value = dict(value, gaps=list(value["gaps"]))
    for key in ("facts", "files", "ranks", "kernel_events", "task_exits"):
        if over > 0 and value.get(key):
            kept, over, left_out = _cut(value[key], over)
            value[key] = kept
            value["gaps"].append(gap(key, f"{left_out} left out: the record would be larger than {limit} bytes"))
    if over > 0:
        value["gaps"] = value["gaps"][-20:]
    return value


def _cut(items: list[Any], over: int) -> tuple[list[Any], int, int]:
    """Leaves out the least telling items, of equal ones the last, until ``over`` bytes are saved."""
    ranked = sorted(range(len(items)), key=lambda number: (_weight(items[number]), -number))
    dropped = set()
    for number in ranked:
        if over <= 0:
            break
        over -= size_of(items[number]) + 1
        dropped.add(number)
    return [item for number, item in enumerate(items) if number not in dropped], over, len(dropped)


def _weight(item: Any) -> int:
    role = item.get("role") if isinstance(item, dict) else None
    return _CUT_ORDER.index(role) if role in _CUT_ORDER else 0
