"""Instances: what the service says of each, and which of Slurm's nodes is which. Pure."""

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
_PROOFS_MAX = 10


def _status(aws: Aws) -> Iterator[Finding]:
    listed = aws.instances()
    wanted, cut = _wanted(aws, listed.items), listed.cut
    by_word: dict[str | None, list[Instance]] = {}
    for one in wanted:
        by_word.setdefault(one.status, []).append(one)
    for status, instances in by_word.items():
        yield _finding(aws, status, instances)
    yield from unread(_STATUS, "the list of instances", cut)
    if not wanted and not cut:
        raise NotObserved("ListClusterNodes told no instance" + (" of the chosen nodes" if aws.nodes else ""))


def _wanted(aws: Aws, instances: Sequence[Instance]) -> Sequence[Instance]:
    """Those of the chosen nodes; all where no node was chosen. Nodes without an instance are the map's matter."""
    if not aws.nodes:
        return instances
    chosen = set(aws.map().instance.values())
    return [one for one in instances if one.id in chosen]


def _finding(aws: Aws, status: str | None, instances: Sequence[Instance]) -> Finding:
    names = [aws.node(one.id) for one in instances]
    what = "the instance of" if len(names) == 1 else f"{len(names)} instances:"
    proofs = tuple(_proof(aws, one) for one in instances[:_PROOFS_MAX])
    if status is None:
        return Finding(_STATUS, "UNKNOWN", f"no status is told of {what} {several(names)}", nodes=names, proofs=proofs)
    row = load().instance.get(status) or Word(status, "WARN", "P1", "a status that this version does not know", "")
    text = f"{status}, {what} {several(names)}: {row.means}"
    if row.status == "PASS":
        return Finding(_STATUS, "PASS", text, nodes=names)
    values = {"instance_id": " ".join(one.id for one in instances), "region": aws.region}
    return Finding(_STATUS, row.status, text, row.priority, nodes=names, proofs=proofs, values=values)


def _proof(aws: Aws, one: Instance) -> Proof:
    message = f", {one.message}" if one.message else ""
    line = f"{one.id} ({one.group or 'group not told'}): {one.status or 'no status'}{message}"
    return call(aws, "sagemaker", "list-cluster-nodes", line)


def _map(aws: Aws) -> Iterator[Finding]:
    if not aws.nodes:
        raise NotObserved("Slurm told no node")
    known = aws.map()
    for node, (told, asked) in known.stale.items():
        text = f"{node} is {asked}; resource_config.json still has {told}: it was replaced since the file was written"
        proof = Proof("/opt/ml/config/resource_config.json", f"{node}: {told}")
        values = {"node": node, "instance_id": asked, "before": told}
        yield Finding(_MAP, "WARN", text, "P2", nodes=(node,), proofs=(proof,), values=values)
    for instance, nodes in known.doubled.items():
        text = f"{instance} is claimed by {several(list(nodes))}: none of them is mapped"
        yield Finding(_MAP, "WARN", text, "P1", nodes=nodes, values={"instance_id": instance})
    yield from _unknown(aws, known)
    sure = [node for node in known.instance if node not in known.stale]
    if sure:
        yield Finding(_MAP, "PASS", f"the instance of {len(sure)} nodes is known, by address or whole name", nodes=sure)


def _unknown(aws: Aws, known: Map) -> Iterator[Finding]:
    if not known.unknown:
        return
    why = _why(aws)
    text = f"no instance has the address or name of {several(list(known.unknown))}{why}"
    yield Finding(_MAP, "UNKNOWN", text, nodes=known.unknown)


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
