"""What NCCL's RAS client says (``ncclras``, as text or with ``-f json`` as JSON): whose operation counts differ.

RAS lists the *smaller* group of ranks, which may be the one behind or the one ahead, and numbers ranks within their
communicator. ``lead`` in a fact's data is a rank's count minus that of most ranks: below zero it is behind.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

from nccl_slurm.model import Fact
from nccl_slurm.parse import stamp
from nccl_slurm.parse.prefix import MAX_RANK

__all__ = ["SIZE_LIMIT", "facts", "joined", "looks_like"]

SIZE_LIMIT = 16 << 20
_COMM, _MISMATCH, _COUNT, _RANK = "nccl.ras-comm", "nccl.ras-mismatch", "nccl.ras-count", "nccl.ras-rank"
_MISSING = "nccl.ras-missing"
#: A group of ranks is listed up to this size: a larger one is no outlier.
_LISTED = 64
_OPERATIONS = 64
_SUCCESS, _IN_PROGRESS = 0, 7


def joined(found: Iterable[Fact]) -> list[Fact]:
    """The same facts; those of RAS text know the communicator, the operation and the count of the lines above them."""
    found = list(found)
    lines = sorted(
        (index for index, fact in enumerate(found) if fact.kind.startswith("nccl.ras-")),
        key=lambda index: (found[index].file or "", found[index].line or 0),
    )
    state: dict[str, Any] = {}
    for index in lines:
        fact = found[index]
        if fact.kind == _COMM or state.get("file") != fact.file:
            state = {"file": fact.file, "comm_hash": fact.data.get("comm_hash")}
        found[index] = replace(fact, data=_with(fact, state))
    return found


def _with(fact: Fact, state: dict[str, Any]) -> dict[str, Any]:
    """``fact``'s data with what ``state`` adds; ``state`` then holds what this line adds for the next ones."""
    data = dict(fact.data)
    if fact.kind == _MISMATCH:
        state.pop("most", None)
        state.pop("count", None)
        state["op"] = data.get("op", "status")
    for key in ("comm_hash", "op"):
        if state.get(key) is not None:
            data.setdefault(key, state[key])
    if fact.kind == _COUNT:
        count = _count(data)
        if count is not None:
            state.setdefault("most", count)  # the most frequent count is printed first
            state["count"] = count
    if fact.kind == _RANK:
        count = _count(data)
        count = state.get("count") if count is None else count
        if count is not None and "status" not in data:
            data["count"] = count
            if isinstance(state.get("most"), int):
                data["lead"] = count - state["most"]
    return data


def _count(data: Mapping[str, Any]) -> int | None:
    value = data.get("count")
    return value if isinstance(value, int) else 0 if "none" in data else None


# ---- JSON


def looks_like(first: bytes) -> bool:
    return first.lstrip()[:1] == b"{" and b'"communicators"' in first and b'"nccl_version"' in first


def facts(raw: bytes, file: str, trust: str, now: float) -> list[Fact]:
    """Facts of the whole output of ``ncclras -f json``. Raises ValueError: not that, or cut off."""
    try:
        value = json.loads(raw.decode("utf-8", "replace"), parse_int=lambda digits: int(digits[:19]))
    except (ValueError, RecursionError):
        raise ValueError("RAS output that is no whole JSON") from None
    base = Fact(kind="", text="", producer="nccl", role="context", trust=trust, file=file)
    at = stamp.find(str(_dict(value).get("timestamp")), now)
    if at is not None:
        base = replace(base, time=at.seconds, uncertainty_s=at.uncertainty_s, data={"clock": at.clock})
    found: list[Fact] = []
    for comm in _dicts(_dict(value).get("communicators")):
        seen = _Communicator.read(comm)
        place = max(raw.find(f'"{comm.get("hash")}"'.encode("utf-8", "replace")), 0)
        here = replace(base, line=raw.count(b"\n", 0, place) + 1, offset=raw.rfind(b"\n", 0, place) + 1)
        found.extend(_communicator(seen, here))
    return found


class _Communicator(NamedTuple):
    hash: str
    size: int
    ranks: list[dict[str, Any]]
    missing: list[dict[str, Any]]

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> _Communicator:
        size = value.get("size")
        return cls(
            str(value.get("hash"))[:40],
            size if isinstance(size, int) else 0,
            [rank for rank in _dicts(value.get("ranks")) if _is_rank(rank.get("rank"))],
            [rank for rank in _dicts(value.get("missing_ranks")) if _is_rank(rank.get("rank"))],
        )


def _communicator(comm: _Communicator, base: Fact) -> Iterator[Fact]:
    data: dict[str, Any] = {**base.data, "comm_hash": comm.hash, "nranks": comm.size}
    text = f"RAS: communicator {comm.hash} of {comm.size} ranks, {len(comm.missing)} missing"
    yield replace(base, kind=_COMM, text=text, data={**data, "missing_ranks": len(comm.missing)})
    for rank in comm.missing[:_LISTED]:
        status = _dict(rank.get("status"))
        said = {key: int(status.get(key) is True) for key in ("unresponsive", "considered_dead")}
        yield _of_rank(base, _MISSING, comm, rank, said, f"RAS: no data of rank {rank['rank']} of {comm.hash}")
    for rank in comm.ranks:
        status = _dict(rank.get("status"))
        errors = {
            key: status[key]
            for key in ("init_state", "async_error")
            if isinstance(status.get(key), int) and status[key] not in (_SUCCESS, _IN_PROGRESS)
        }
        if errors or status.get("abort_flag") is True:
            said = {**errors, "aborted": int(status.get("abort_flag") is True)}
            yield _of_rank(base, "nccl.ras-error", comm, rank, said, f"RAS: error on rank {rank['rank']}")
    operations = sorted({str(key)[:40] for rank in comm.ranks for key in _dict(rank.get("collective_counts"))})
    for op in operations[:_OPERATIONS]:
        yield from _operation(comm, op, base)


def _operation(comm: _Communicator, op: str, base: Fact) -> Iterator[Fact]:
    counts = [(rank, _dict(rank.get("collective_counts")).get(op)) for rank in comm.ranks]
    known = [(rank, count) for rank, count in counts if isinstance(count, int)]
    groups = Counter(count for _, count in known).most_common()
    if len(groups) < 2:
        return
    data: dict[str, Any] = {**base.data, "comm_hash": comm.hash, "op": op}
    text = f"RAS: ranks of {comm.hash} have different {op} operation counts"
    yield replace(base, kind=_MISMATCH, text=text, hint="collective-hang-unattributed", data=data)
    (most, ranks), *others = groups
    said = {**data, "ranks": ranks, "count": most}
    yield replace(base, kind=_COUNT, text=f"RAS: {ranks} ranks have launched up to operation {most}", data=said)
    if others[0][1] == ranks:
        return  # two groups of one size: neither is the odd one
    small = {count for count, size in others if size <= _LISTED}
    for rank, count in known:
        if count in small:
            what = f"RAS: rank {rank['rank']} has launched up to operation {count}"
            yield _of_rank(base, _RANK, comm, rank, {"op": op, "count": count, "lead": count - most}, what)


def _of_rank(
    base: Fact, kind: str, comm: _Communicator, rank: Mapping[str, Any], said: Mapping[str, Any], text: str
) -> Fact:
    known = {**base.data, "comm_hash": comm.hash, "nranks": comm.size}
    data: dict[str, Any] = {**known, "group_rank": rank["rank"], **said}
    for key, own in (("pid", "pid"), ("cuda_dev", "gpu")):
        if isinstance(rank.get(key), int) and rank[key] >= 0:
            data[own] = rank[key]
    if isinstance(rank.get("host"), str):
        data["node"] = rank["host"][:80]
    return replace(base, kind=kind, text=text, data=data)


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_RANK


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
