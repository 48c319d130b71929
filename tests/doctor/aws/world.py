"""A HyperPod cluster as its APIs tell it, for tests of the checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3

from nccl_slurm.doctor.aws.checks import checks
from nccl_slurm.doctor.aws.client import Client, Limits
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.place import Member, Place
from nccl_slurm.doctor.check import Finding, judged

ACCOUNT = "123456789012"
ARN = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:cluster/abcdef012345"
SINCE, UNTIL = 1_700_000_000.0, 1_700_010_000.0
LOG_GROUP = "/aws/sagemaker/Clusters/training/abcdef012345"
LIMITS = Limits(connect_s=2.0, read_s=2.0, tries=2)


@dataclass(frozen=True)
class Node:
    name: str
    hostname: str | None = None
    address: str | None = None


def instance(number: int) -> str:
    return f"i-{number:017x}"


def nodes(count: int) -> list[Node]:
    return [Node(f"ip-10-0-0-{number}", f"ip-10-0-0-{number}", f"10.0.0.{number}") for number in range(1, count + 1)]


def members(count: int) -> list[Member]:
    return [Member(instance(number), f"10.0.0.{number}", "workers") for number in range(1, count + 1)]


def group(**more: Any) -> dict[str, Any]:
    base = {"InstanceGroupName": "workers", "InstanceType": "ml.p5.48xlarge", "CurrentCount": 2, "TargetCount": 2}
    return {**base, **more}


def cluster(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "ClusterArn": ARN,
        "ClusterName": "training",
        "ClusterStatus": "InService",
        "InstanceGroups": [group()],
        "NodeRecovery": "Automatic",
        "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    }
    return {key: value for key, value in {**base, **more}.items() if value is not None}


def summary(number: int, status: str | None = "Running", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "InstanceGroupName": "workers",
        "InstanceId": instance(number),
        "InstanceType": "ml.p5.48xlarge",
        "LaunchTime": SINCE,
        "InstanceStatus": {"Status": status} if status else {},
        "PrivateDnsHostname": f"ip-10-0-0-{number}.us-west-2.compute.internal",
    }
    return {key: value for key, value in {**base, **more}.items() if value is not None}


def listed(*summaries: Mapping[str, Any], token: str | None = None) -> dict[str, Any]:
    return {"ClusterNodeSummaries": list(summaries), **({"NextToken": token} if token else {})}


def event(text: str, at: float = SINCE + 60, **more: Any) -> dict[str, Any]:
    base = {
        "EventId": "e",
        "ClusterArn": ARN,
        "ClusterName": "training",
        "ResourceType": "Instance",
        "EventTime": at,
        "Description": text,
    }
    return {**base, **more}


def detection(number: int, reason: str, text: str, key: str = "details: ") -> dict[str, Any]:
    tree = {
        "level": "info",
        "ts": "2023-11-14T22:15:00Z",
        "msg": "NPD caught event: %v",
        key: {"severity": "warn", "reason": reason, "message": text},
        "HealthMonitoringAgentDetectionEvent": "HealthEvent",
    }
    return line(f"SagemakerHealthMonitoringAgent/workers/{instance(number)}", json.dumps(tree))


def line(stream: str, message: str, at: float = SINCE + 100) -> dict[str, Any]:
    return {"logStreamName": stream, "timestamp": int(at * 1000), "message": message, "eventId": "1"}


def aws(place: Place | None = None, chosen: Sequence[Node] = (), **more: Any) -> Aws:
    place = place or Place(cluster="training", arn=ARN, region="us-west-2", hyperpod=True)
    return Aws(place, Client(place.region, LIMITS, _session=_session()), SINCE, UNTIL, chosen, **more)


@cache
def _session() -> boto3.session.Session:
    """One for all tests: a new one reads SageMaker's model again, half a second."""
    return boto3.session.Session(region_name="us-west-2")


def look(name: str, observed: Aws) -> list[Finding]:
    check = next(check for check in checks() if check.id == name)
    return judged(check, observed)


def said(findings: Sequence[Finding]) -> list[tuple[str, str | None]]:
    return [(finding.status, finding.priority) for finding in findings]
