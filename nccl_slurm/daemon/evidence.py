"""Everything known of one run, put together: Slurm's word, node records, the job's output → `Evidence`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from nccl_slurm.daemon.steps import told_apart
from nccl_slurm.daemon.taskexits import exit_facts
from nccl_slurm.info.version import GPU_DRIVER
from nccl_slurm.model import Evidence, Fact, Gap, Job, NodeView, Parsed, Rank, numbered
from nccl_slurm.recommend.site import short

__all__ = ["SHOWS_NCCL_OR_TORCH", "assemble", "merge_ranks", "role_of", "shows_nccl_or_torch"]

#: Producers whose lines tell that a job is one of ours (scope ``gpu-or-evidence``).
SHOWS_NCCL_OR_TORCH = frozenset({"nccl", "torch", "gloo", "elastic", "flight-recorder", "ofi", "cuda"})


def assemble(
    job: Job, nodes: Sequence[NodeView], records: Mapping[str, Mapping[str, Any]], output: Parsed, gaps: Iterable[Gap]
) -> Evidence:
    """``records`` by node name, each valid against node-record/1; ``output`` is the job's own stdout and stderr."""
    records = told_apart(records)
    short = {node.name.partition(".")[0]: node.name for node in nodes}
    placed = [_placed(rank, name) for name, record in records.items() for rank in record["ranks"]]
    doubled = _on_two_nodes(placed)
    facts: list[Fact] = []
    for name, record in records.items():
        facts += _facts_of(name, record, doubled, len(facts) + 1)
    exits, unknown = exit_facts(job, records)
    more = [*exits, *(_on_node(fact, short) for fact in output.facts)]
    more += [fact for name, record in records.items() for fact in _driver(name, record)]
    ranks = [rank for rank in placed if (rank.rank, rank.step) not in doubled]
    ranks += [_rank_on_node(rank, short) for rank in output.ranks]
    sizes = {size for size in [*(r["world_size"] for r in records.values()), output.world_size] if size is not None}
    told = [Gap(f"{name}: {gap['source']}", gap["why"]) for name, record in records.items() for gap in record["gaps"]]
    agreed, conflicts = _agreed(ranks, set(short.values()))
    return Evidence(
        job=job,
        nodes=nodes,
        facts=(*facts, *numbered(more, len(facts) + 1)),
        ranks=merge_ranks(agreed),
        gaps=_once([*gaps, *output.gaps, *told, *_disagreement(sizes), *_doubled_gap(doubled), *conflicts, *unknown]),
        world_size=sizes.pop() if len(sizes) == 1 and not doubled else None,
    )


def _agreed(ranks: Sequence[Rank], nodes: Collection[str]) -> tuple[list[Rank], list[Gap]]:
    """Where a node's record and the job's output differ about a rank. The record was written on the rank's node; of
    two local ranks or GPUs neither is used. A host that is no node of the run is a container's name for itself."""
    said: dict[tuple[int, str], dict[object, None]] = {}
    for rank in ranks if all(rank.step is None for rank in ranks) else ():
        for key in ("host", "local_rank", "gpu"):
            value = getattr(rank, key)
            if value is not None and (key != "host" or value in nodes):
                said.setdefault((rank.rank, key), {})[value] = None
    gaps = [
        Gap(f"rank {number}", f"{key}: both {' and '.join(map(str, values))}; {_used(key, values)}")
        for (number, key), values in said.items()
        if len(values) > 1
    ]
    unused: dict[int, dict[str, Any]] = {}
    for (number, key), values in said.items():
        if len(values) > 1 and key != "host":
            unused.setdefault(number, {})[key] = None
    return [replace(rank, **unused[rank.rank]) if rank.rank in unused else rank for rank in ranks], gaps


def _used(key: str, values: Iterable[object]) -> str:
    return f"{next(iter(values))} by its node's record" if key == "host" else "not used"


#: A rank and the step that it is of.
_Who = tuple[int, str | None]


def _on_two_nodes(ranks: Iterable[Rank]) -> frozenset[_Who]:
    """Where a node's logs show a sub-group alone (tensor parallel inside a node), its group ranks look global, and
    the same numbers come from every node: none of them can be believed."""
    first: dict[_Who, str | None] = {}
    return frozenset(who for r in ranks if first.setdefault(who := (r.rank, r.step), r.host) != r.host)


def _doubled_gap(doubled: frozenset[_Who]) -> list[Gap]:
    if not doubled:
        return []
    which = ", ".join(str(rank) for rank in sorted({rank for rank, _ in doubled})[:20])
    return [Gap("rank numbers", f"several nodes claim rank {which}: ranks of sub-groups, not used")]


def _facts_of(name: str, record: Mapping[str, Any], doubled: frozenset[_Who], first: int) -> list[Fact]:
    """A record's facts happened on its node, whatever host they claim; files are shown below the node's name. Their ids
    count from ``first``."""
    told = [(value, "root") for value in record["kernel_events"]] + [(value, "job") for value in record["facts"]]
    if doubled:
        told = [({**value, "rank": None} if _who(value) in doubled else value, trust) for value, trust in told]
    files = {file: f"{name}/{file}" if file else None for file in {value.get("file") for value, _ in told}}
    return [
        Fact.from_json(value, host=name, trust=trust, file=files[value.get("file")], id=f"f{number}")
        for number, (value, trust) in enumerate(told, first)
    ]


def _who(fact: Mapping[str, Any]) -> tuple[int | None, str | None]:
    return fact.get("rank"), fact.get("data", {}).get("of_step")


def _driver(name: str, record: Mapping[str, Any]) -> list[Fact]:
    """NVIDIA's driver as the node's own query told it before the run, else after it."""
    snapshots = [record["snapshots"][when] for when in ("before", "after")]
    version = next((one["driver"] for one in snapshots if one is not None and one["driver"]), None)
    if version is None:
        return []
    text = f"GPU driver {version}"
    return [Fact(GPU_DRIVER, text, "gpu", "context", "root", host=name, data={"version": version})]


def _on_node(fact: Fact, short: Mapping[str, str]) -> Fact:
    return replace(fact, host=_node_of(fact.host, short), trust="job")


def _rank_on_node(rank: Rank, short: Mapping[str, str]) -> Rank:
    return replace(rank, host=_node_of(rank.host, short))


def _node_of(host: str | None, short: Mapping[str, str]) -> str | None:
    """Programs print the host name in full or cut at the first dot; Slurm knows it by the node's name."""
    return None if host is None else short.get(host.partition(".")[0], host)


def _placed(rank: Mapping[str, Any], node: str) -> Rank:
    return Rank.from_json({**rank, "host": node, "files": [f"{node}/{name}" for name in rank.get("files", ())]})


def merge_ranks(ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """One entry a rank, and a step where there are several; the first that knows a thing tells it, times are widened,
    progress is taken per group."""
    merged: dict[_Who, Rank] = {}
    for rank in ranks:
        who = rank.rank, rank.step
        merged[who] = _merge(merged[who], rank) if who in merged else rank
    return tuple(merged[who] for who in sorted(merged, key=lambda who: (who[0], who[1] or "")))


def _merge(one: Rank, two: Rank) -> Rank:
    filled = {f.name: getattr(two, f.name) for f in fields(Rank) if getattr(one, f.name) is None}
    joined = replace(one, **filled, progress={**two.progress, **one.progress}, files=[*one.files, *two.files])
    firsts = [t for t in (one.first, two.first) if t is not None]
    newest = max((one, two), key=lambda rank: rank.last if rank.last is not None else float("-inf"))
    return replace(
        joined,
        first=min(firsts, default=None),
        last=newest.last,
        last_line=newest.last_line or joined.last_line,
        uncertainty_s=newest.uncertainty_s if newest.last is not None else joined.uncertainty_s,
    )


def _disagreement(sizes: set[int]) -> list[Gap]:
    if len(sizes) < 2:
        return []
    told = ", ".join(str(size) for size in sorted(sizes))
    return [Gap("world size", f"sources disagree: {told}; no rank can be called missing")]


def _once(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))


def role_of(name: str, record: Mapping[str, Any] | None, controllers: Iterable[str]) -> str:
    """``controller`` by anybody's word; ``compute`` only where the node's own evidence says so. A host has a name
    of its own beside Slurm's."""
    names = {short(name), short(str((record or {}).get("machine", {}).get("hostname") or name))}
    if not names.isdisjoint(map(short, controllers)):
        return "controller"
    role = record["machine"]["role"] if record else {}
    if role.get("slurmctld_running") or "controller" in str(role.get("node_type") or "").lower():
        return "controller"
    return "compute" if role.get("slurmctld_running") is False else "unknown"


def shows_nccl_or_torch(evidence: Evidence) -> bool:
    return any(fact.producer in SHOWS_NCCL_OR_TORCH for fact in evidence.facts) or bool(evidence.ranks)
