"""The policy file holds the calls that are made, each of them and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3

from nccl_slurm.doctor.aws.checks import checks
from nccl_slurm.doctor.aws.client import POLICY
from nccl_slurm.doctor.check import judged
from tests.doctor.aws.endpoint import Endpoint
from tests.doctor.aws.world import LOG_GROUP, aws, cluster, detection, event, group, listed, nodes, summary

ROOT = Path(__file__).parents[3]
#: Needs no permission (IAM User Guide): what a policy can't forbid, it need not allow.
FREE = {"sts:GetCallerIdentity"}


def statements() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / POLICY).read_text())["Statement"]
    return found


def allowed() -> set[str]:
    return {action for statement in statements() for action in statement["Action"]}


def test_policy_and_calls_are_the_same(joined: Endpoint) -> None:
    """In a world in which every branch is taken: a group is short, an instance has no name, the agent is silent."""
    ec2 = boto3.client("ec2", region_name="us-west-2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24")["Subnet"]["SubnetId"]
    guard = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    joined.calls.clear()
    network = {"SecurityGroupIds": [guard], "Subnets": [subnet]}
    joined.says("sagemaker:DescribeCluster", cluster(VpcConfig=network, InstanceGroups=[group(CurrentCount=0)]))
    joined.says("sagemaker:ListClusterNodes", listed(summary(1, PrivateDnsHostname=None)))
    joined.says("sagemaker:DescribeClusterNode", {"NodeDetails": {"InstanceId": summary(1)["InstanceId"]}})
    joined.says("sagemaker:ListClusterEvents", {"Events": [event("hardware failure")]})
    joined.says("logs:FilterLogEvents", {"events": []})
    observed = aws(chosen=nodes(1))
    for check in checks():
        judged(check, observed)
    assert {call.action for call in joined.calls} == allowed() | FREE
    joined.says("logs:FilterLogEvents", {"events": [detection(1, "r", "t")]})
    assert {call.parameters["logGroupName"] for call in joined.calls if call.action.startswith("logs:")} == {LOG_GROUP}


def test_nothing_in_the_policy_changes_anything() -> None:
    for action in allowed():
        assert action.partition(":")[2].startswith(("Describe", "List", "Filter", "Get"))
    assert {statement["Effect"] for statement in statements()} == {"Allow"}


def test_resources_are_as_narrow_as_the_service_allows() -> None:
    """EC2's describe calls take no resource."""
    for statement in statements():
        wide = statement["Resource"] == "*"
        assert wide == all(action.startswith("ec2:") for action in statement["Action"])


def test_the_document_has_each_check_permission_and_row_of_eks() -> None:
    from nccl_slurm.doctor.aws.rows import load

    text = (ROOT / "docs" / "aws.md").read_text("utf-8")
    assert all(f"| `{check.id}` |" in text for check in checks())
    assert all(f"`{action}`" in text for action in allowed() | FREE)
    assert all(what in text for what in (*load().covered, *load().uncovered))
