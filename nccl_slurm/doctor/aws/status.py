"""The cluster as a whole: its status, its recovery of nodes, and whether it has what it asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_slurm.doctor.aws.cluster import Cluster, Group
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import Word, load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, several
from nccl_slurm.doctor.check import Finding, NotObserved

__all__ = ["CAPACITY", "CLUSTER_STATUS", "NODE_RECOVERY"]

_STATUS, _RECOVERY, _CAPACITY = "aws.cluster-status", "aws.node-recovery", "aws.capacity"


_UNKNOWN = Word("other", "WARN", "P1", "a status that this version does not know", "")


def _status(aws: Aws) -> Iterator[Finding]:
    cluster = aws.cluster()
    if cluster.status is None:
        raise NotObserved("DescribeCluster told no ClusterStatus")
    row = load().cluster.get(cluster.status)
    why = f": {cluster.failure}" if cluster.failure else ""
    proof = call(aws, "sagemaker", "describe-cluster", f"ClusterStatus: {cluster.status}{why}")
    if row is None:
        text = f"{cluster.status}, a status that this version does not know{why}"
        yield Finding(_STATUS, "WARN", text, "P1", proofs=(proof,))
    else:
        yield Finding(_STATUS, row.status, f"{cluster.status}: {row.means}{why}", row.priority, proofs=(proof,))


def _recovery(aws: Aws) -> Iterator[Finding]:
    told = aws.cluster().recovery
    if told is None:
        raise NotObserved("DescribeCluster told no NodeRecovery")
    proof = call(aws, "sagemaker", "describe-cluster", f"NodeRecovery: {told}")
    if told == "Automatic":
        yield Finding(
            _RECOVERY, "PASS", "HyperPod reboots or replaces nodes that its health agent finds", proofs=(proof,)
        )
    elif told == "None":
        text = "NodeRecovery is None: HyperPod acts on no fault by itself, a person has to"
        yield Finding(_RECOVERY, "WARN", text, "P2", proofs=(proof,))
    else:
        yield Finding(_RECOVERY, "WARN", f"NodeRecovery is {told}, unknown to this version", "P2", proofs=(proof,))


def _capacity(aws: Aws) -> Iterator[Finding]:
    """Each group's status, its count beside its target, its training plan, and addresses that its subnets have left."""
    cluster = aws.cluster()
    if not cluster.groups:
        raise NotObserved("DescribeCluster told no instance group")
    wrong = [finding for group in cluster.groups for finding in _of_group(aws, group)]
    yield from wrong
    untold = [group.name for group in cluster.groups if group.current is None or group.target is None]
    if untold:
        text = f"CurrentCount or TargetCount is not told of {several(untold)}"
        yield Finding(_CAPACITY, "UNKNOWN", text)
    short = [group for group in cluster.groups if _missing(group) > 0]
    for group in short:
        yield _short(aws, group)
    yield from _addresses(aws, cluster, short)
    if not short and not untold and not wrong:
        yield Finding(
            _CAPACITY, "PASS", f"{len(cluster.groups)} instance groups have as many instances as they ask for"
        )


def _of_group(aws: Aws, group: Group) -> Iterator[Finding]:
    """Where the service tells a status of the group that is not the plain one."""
    row = load().group.get(group.status or "InService") or _UNKNOWN
    if row.status != "PASS":
        proof = call(aws, "sagemaker", "describe-cluster", f"{group.name}: Status {group.status}")
        text = f"{group.name} is {group.status}: {row.means}"
        yield Finding(_CAPACITY, row.status, text, row.priority, proofs=(proof,), values={"group": group.name})


def _missing(group: Group) -> int:
    return (group.target or 0) - group.current if group.current is not None and group.target is not None else 0


def _short(aws: Aws, group: Group) -> Finding:
    plan = f"; training plan {group.plan}" if group.plan else ""
    told = f"{group.name}: CurrentCount {group.current}, TargetCount {group.target}"
    kinds = ", ".join(group.kinds) or "type not told"
    text = f"{group.name} has {group.current} of {group.target} instances ({kinds}){plan}"
    proof = call(aws, "sagemaker", "describe-cluster", told + plan)
    values = {"group": group.name, "missing": str(_missing(group)), "plan": group.plan or ""}
    return Finding(_CAPACITY, "WARN", text, "P1", proofs=(proof,), values=values)


def _addresses(aws: Aws, cluster: Cluster, short: Sequence[Group]) -> Iterator[Finding]:
    """Asked where instances are missing: a full subnet is one reason for it, and to see it is a permission more."""
    wanted = {group.name: vpc.subnets for group in short if (vpc := cluster.vpc_of(group)) and vpc.subnets}
    if not wanted:
        return
    try:
        found = aws.subnets([subnet for subnets in wanted.values() for subnet in subnets])
    except NotObserved as error:
        yield Finding(_CAPACITY, "UNKNOWN", f"free addresses of subnets: {error}")
        return
    for group, subnets in wanted.items():
        free = [found.get(subnet, {}).get("AvailableIpAddressCount") for subnet in subnets]
        counts = [count for count in free if isinstance(count, int)]
        if counts and len(counts) == len(subnets) and not sum(counts):
            line = f"AvailableIpAddressCount 0 in {several(list(subnets))}"
            proof = call(aws, "ec2", "describe-subnets", line, "--subnet-ids", *subnets)
            yield Finding(_CAPACITY, "FAIL", f"{group}: its subnets have no address left", "P1", proofs=(proof,))


_OF_THE_CLUSTER = ("aws.capacity", "aws.node-status")
CLUSTER_STATUS = AwsCheck(_STATUS, "status of the HyperPod cluster", _status, _OF_THE_CLUSTER)
NODE_RECOVERY = AwsCheck(_RECOVERY, "whether HyperPod replaces faulty nodes by itself", _recovery)
CAPACITY = AwsCheck(_CAPACITY, "instances beside what the groups ask for, training plans, free addresses", _capacity)
