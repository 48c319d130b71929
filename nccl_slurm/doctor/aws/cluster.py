"""What SageMaker says of a HyperPod cluster, as typed nouns. Fields as in botocore's model of 1.44; any may be absent:
None is *not told*. Times are seconds since 1970 UTC. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Cluster", "Event", "Group", "Instance", "Vpc", "read_cluster", "read_event", "read_instance", "seconds"]


@dataclass(frozen=True)
class Vpc:
    groups: tuple[str, ...]
    subnets: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """An instance group. ``kinds``: its instance types, several where it is flexible. ``own``: OverrideVpcConfig, in
    place of the cluster's. ``plan``: TrainingPlanStatus. ``efa``: its NetworkInterface says so."""

    name: str
    kinds: tuple[str, ...] = ()
    status: str | None = None
    efa: bool = False
    current: int | None = None
    target: int | None = None
    own: Vpc | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Cluster:
    """``orchestrator``: ``eks``, ``slurm``; None: the reply has no such field, as those of older Slurm clusters."""

    name: str | None = None
    arn: str | None = None
    status: str | None = None
    failure: str | None = None
    recovery: str | None = None
    provisioning: str | None = None
    orchestrator: str | None = None
    vpc: Vpc | None = None
    groups: Sequence[Group] = ()

    def vpc_of(self, group: Group) -> Vpc | None:
        return group.own or self.vpc


@dataclass(frozen=True)
class Instance:
    """``host``: PrivateDnsHostname. ``address``: only DescribeClusterNode tells it."""

    id: str
    group: str | None = None
    kind: str | None = None
    status: str | None = None
    message: str | None = None
    host: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class Event:
    time: float | None
    text: str
    level: str | None = None
    group: str | None = None
    instance: str | None = None


def read_cluster(reply: Mapping[str, Any]) -> Cluster:
    groups = [*_items(reply.get("InstanceGroups")), *_items(reply.get("RestrictedInstanceGroups"))]
    return Cluster(
        name=_text(reply.get("ClusterName")),
        arn=_text(reply.get("ClusterArn")),
        status=_text(reply.get("ClusterStatus")),
        failure=_text(reply.get("FailureMessage")),
        recovery=_text(reply.get("NodeRecovery")),
        provisioning=_text(reply.get("NodeProvisioningMode")),
        orchestrator=_orchestrator(reply.get("Orchestrator")),
        vpc=_vpc(reply.get("VpcConfig")),
        groups=[_group(one) for one in groups],
    )


def read_instance(value: Mapping[str, Any]) -> Instance | None:
    """Of a summary, or of NodeDetails. None without an id."""
    number = _text(value.get("InstanceId"))
    if number is None:
        return None
    status = value.get("InstanceStatus")
    told = status if isinstance(status, Mapping) else {}
    return Instance(
        id=number,
        group=_text(value.get("InstanceGroupName")),
        kind=_text(value.get("InstanceType")),
        status=_text(told.get("Status")),
        message=_text(told.get("Message")),
        host=_text(value.get("PrivateDnsHostname")),
        address=_text(value.get("PrivatePrimaryIp")),
    )


def read_event(value: Mapping[str, Any]) -> Event:
    return Event(
        time=seconds(value.get("EventTime")),
        text=_text(value.get("Description")) or "",
        level=_text(value.get("EventLevel")),
        group=_text(value.get("InstanceGroupName")),
        instance=_text(value.get("InstanceId")),
    )


def seconds(value: object) -> float | None:
    """botocore gives datetimes with a zone."""
    try:
        return value.timestamp() if isinstance(value, datetime) else None
    except (OverflowError, ValueError, OSError):
        return None


def _orchestrator(value: object) -> str | None:
    told = value if isinstance(value, Mapping) else {}
    words = [word for key, word in (("Eks", "eks"), ("Slurm", "slurm")) if isinstance(told.get(key), Mapping)]
    return words[0] if len(words) == 1 else None


def _group(value: Mapping[str, Any]) -> Group:
    network = value.get("NetworkInterface")
    return Group(
        name=_text(value.get("InstanceGroupName")) or "?",
        kinds=_kinds(value),
        status=_text(value.get("Status")),
        efa=isinstance(network, Mapping) and (_text(network.get("InterfaceType")) or "").startswith("efa"),
        current=_count(value.get("CurrentCount")),
        target=_count(value.get("TargetCount")),
        own=_vpc(value.get("OverrideVpcConfig")),
        plan=_text(value.get("TrainingPlanStatus")),
    )


def _kinds(value: Mapping[str, Any]) -> tuple[str, ...]:
    told = [_text(one.get("InstanceType")) for one in (value, *_items(value.get("InstanceTypeDetails")))]
    return tuple(dict.fromkeys(kind for kind in told if kind))


def _vpc(value: object) -> Vpc | None:
    told = value if isinstance(value, Mapping) else {}
    groups, subnets = _texts(told.get("SecurityGroupIds")), _texts(told.get("Subnets"))
    return Vpc(groups, subnets) if groups or subnets else None


def _items(value: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str) and one) if isinstance(value, (list, tuple)) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
