"""A run's paths against those of an earlier run of the same user on the same machines.

Of the same user only: what another user's program printed is for that user's report, and proves nothing in this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from nccl_slurm.daemon.runs import key_of
from nccl_slurm.history.rows import RecordRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.info.path import ways
from nccl_slurm.model import Earlier, Evidence

__all__ = ["earlier", "keep"]


def earlier(store: Store, run: RunRow, records: Sequence[RecordRow]) -> Earlier | None:
    """None too where a node's record is missing: whether the machines are the same is not known then."""
    names = {row.node: row.record["machine"]["identity"] for row in records}
    if run.uid is None or run.start is None or not _told(run, names):
        return None
    found = store.earlier_paths(run.cluster, run.uid, _digest(names), run.start)
    if found is None:
        return None
    return Earlier(found.id, found.run, {node: found.ways[one] for node, one in names.items() if one in found.ways})


def keep(store: Store, run: RunRow, evidence: Evidence) -> None:
    """What its lines tell of each machine, if they tell anything, for the runs that come."""
    names = {node.name: node.identity for node in evidence.nodes}
    if not _told(run, names):
        return
    found = {str(names[host]): way for host, way in ways(evidence.facts).items() if host in names}
    if found:
        store.save_paths(*key_of(run), _digest(names), found)


def _told(run: RunRow, names: Mapping[str, str | None]) -> bool:
    """Each node of the run has a machine of its own behind it."""
    return set(run.nodes) == set(names) and None not in names.values() and len(set(names.values())) == len(names) > 0


def _digest(names: Mapping[str, str | None]) -> str:
    return hashlib.sha256("\n".join(sorted(map(str, names.values()))).encode()).hexdigest()
