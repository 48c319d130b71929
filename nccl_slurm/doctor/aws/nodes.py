"""Instances: what the service says of each, and which of Slurm's nodes is which. Pure.

A finding a node: what is alike is folded by whoever prints them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_slurm.doctor.aws.cluster import Instance
from nccl_slurm.doctor.aws.instances import Map
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import Word, load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, several, unread
from nccl_slurm.doctor.check import Finding, NotObserved, Proof

__all__ = ["INSTANCE_MAP", "NODE_STATUS"]

_STATUS, _MAP = "aws.node-status", "aws.instance-map"
_FILE = "/opt/ml/config/resource_config.json"


def _status(aws: Aws) -> Iterator[Finding]:
    listed = aws.instances()
    wanted, others = _parted(aws, listed.items)
    named = {one.id: nodes for one in wanted if (nodes := aws.nodes_of(one.id))}
    yield from (_finding(aws, one, named[one.id]) for one in wanted if one.id in named)
    yield from _of_nobody(aws, [one for one in wanted if one.id not in named])
    unmapped = _unmapped(aws)
    if unmapped:
        yield Finding(_STATUS, "UNKNOWN", "which instance it is is not known, nor its status", nodes=unmapped)
    yield from _of_others(aws, others, unmapped)
    yield from unread(_STATUS, "the list of instances", listed.cut)
    if not wanted and not unmapped and not listed.cut:
        raise NotObserved("ListClusterNodes told no instance" + (" of the chosen nodes" if aws.nodes else ""))


def _parted(aws: Aws, instances: Sequence[Instance]) -> tuple[list[Instance], list[Instance]]:
    """Those of the chosen nodes, all others; no others where no node was chosen. Nodes that have none are the map's."""
    if not aws.nodes:
        return list(instances), []
    chosen = set(aws.map().instance.values())
    return [one for one in instances if one.id in chosen], [one for one in instances if one.id not in chosen]


def _unmapped(aws: Aws) -> list[str]:
    """Chosen nodes whose instance is not known; any other instance may be theirs."""
    known = aws.map().instance if aws.nodes else {}
    return [node.name for node in aws.nodes if node.name not in known]


def _finding(aws: Aws, one: Instance, nodes: Sequence[str]) -> Finding:
    values = {"instance_id": one.id, "group": one.group or ""}
    row = _row(one.status)
    proofs = () if row.status == "PASS" else (_proof(aws, one),)
    return Finding(_STATUS, row.status, _text(one.status, row), row.priority, nodes=nodes, proofs=proofs, values=values)


def _of_nobody(aws: Aws, instances: Sequence[Instance]) -> Iterator[Finding]:
    """Where Slurm told no node: an instance id is no host, so these are of the cluster, and named in the text."""
    by_status: dict[str | None, list[Instance]] = {}
    for one in instances:
        by_status.setdefault(one.status, []).append(one)
    for status, alike in by_status.items():
        row = _row(status)
        proofs = () if row.status == "PASS" else tuple(_proof(aws, one) for one in alike[:4])
        text = f"{_text(status, row)}: {len(alike)} instances ({several([one.id for one in alike])})"
        values = {"instance_id": alike[0].id, "group": alike[0].group or ""}
        yield Finding(_STATUS, row.status, text, row.priority, proofs=proofs, values=values)


def _text(status: str | None, row: Word) -> str:
    return f"{status}: {row.means}" if status is not None else row.means


def _row(status: str | None) -> Word:
    if status is None:
        return Word("untold", "UNKNOWN", None, "no status is told", "")
    return load().instance.get(status) or Word(status, "WARN", "P1", "a status that this version does not know", "")


def _of_others(aws: Aws, others: Sequence[Instance], unmapped: Sequence[str]) -> Iterator[Finding]:
    """Of the cluster, and of no chosen node: controllers, login nodes, what is being made. They inform, no more, but
    where they may be ``unmapped`` nodes'."""
    by_status: dict[str, list[Instance]] = {}
    for one in others:
        if one.status is not None and _row(one.status).status != "PASS":
            by_status.setdefault(one.status, []).append(one)
    for status, instances in by_status.items():
        proofs = tuple(_proof(aws, one) for one in instances[:4])
        ids, row = several([one.id for one in instances]), _row(status)
        if unmapped:
            text = f"{len(instances)} instances: {status} ({ids}), which may be those of {several(unmapped)}"
            yield Finding(_STATUS, row.status, text, row.priority, proofs=proofs)
            continue
        text = f"{len(instances)} instances of no chosen node: {status} ({ids})"
        yield Finding(_STATUS, "WARN", text, "P2", proofs=proofs)


def _proof(aws: Aws, one: Instance) -> Proof:
    message = f", {one.message}" if one.message else ""
    line = f"{one.id} ({one.group or 'group not told'}): {one.status or 'no status'}{message}"
    return call(aws, "sagemaker", "list-cluster-nodes", line)


def _map(aws: Aws) -> Iterator[Finding]:
    aws.name()
    if not aws.nodes:
        raise NotObserved("Slurm told no node")
    known = aws.map()
    for node, (told, asked) in known.stale.items():
        text = "replaced since resource_config.json was written: the service has another instance under its address"
        proofs = (Proof(_FILE, f"{node}: {told}"), call(aws, "sagemaker", "list-cluster-nodes", f"{node}: {asked}"))
        values = {"node": node, "instance_id": asked, "before": told}
        yield Finding(_MAP, "WARN", text, "P2", nodes=(node,), proofs=proofs, values=values)
    for instance, nodes in known.doubled.items():
        text = f"{instance} is claimed by {len(nodes)} nodes: none of them is mapped"
        yield Finding(_MAP, "WARN", text, "P1", nodes=nodes, values={"instance_id": instance})
    yield from _unknown(aws, known)
    for node, instance in known.instance.items():
        if node not in known.stale:
            values = {"instance_id": instance}
            yield Finding(_MAP, "PASS", "its instance is known, by address or whole name", nodes=(node,), values=values)


def _unknown(aws: Aws, known: Map) -> Iterator[Finding]:
    if known.unknown:
        yield Finding(_MAP, "UNKNOWN", f"no instance has its address or name{_why(aws)}", nodes=known.unknown)


def _why(aws: Aws) -> str:
    reasons = [aws.place.unread] if aws.place.members is None and aws.place.unread else []
    try:
        reasons += [aws.instances().cut]
    except NotObserved as error:
        reasons.append(str(error))
    told = "; ".join(reason for reason in reasons if reason)
    return f" ({told})" if told else ""


NODE_STATUS = AwsCheck(_STATUS, "status of each instance, by all pages of the list", _status)
INSTANCE_MAP = AwsCheck(_MAP, "the instance behind each of Slurm's nodes, exactly", _map)
