"""Security groups: rules of all groups add up, both directions count, EFA wants protocol -1 by group."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from nccl_slurm.doctor.aws.security import allows, read_rules
from tests.doctor.aws.endpoint import Endpoint, Error
from tests.doctor.aws.world import LOG_GROUP, aws, cluster, group, look, said

CLUSTER, GROUPS = "sagemaker:DescribeCluster", "ec2:DescribeSecurityGroups"
ALL = {"IpProtocol": "-1"}


def peer(*ids: str, **rule: Any) -> dict[str, Any]:
    return {"IpProtocol": "-1", **rule, "UserIdGroupPairs": [{"GroupId": one} for one in ids]}


def world(*, cidr: str = "0.0.0.0/0", protocol: str = "-1", **more: Any) -> dict[str, Any]:
    return {"IpProtocol": protocol, "IpRanges": [{"CidrIp": cidr}], **more}


class Network:
    """Security groups in moto's EC2."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2", region_name="us-west-2")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.number = 0

    def group(self) -> str:
        """Without any rule; EC2 gives a new one an outbound rule to everywhere."""
        self.number += 1
        name = f"g{self.number}"
        made: str = self.ec2.create_security_group(GroupName=name, Description=name, VpcId=self.vpc)["GroupId"]
        told = self.ec2.describe_security_groups(GroupIds=[made])["SecurityGroups"][0]["IpPermissionsEgress"]
        self.ec2.revoke_security_group_egress(GroupId=made, IpPermissions=told)
        return made

    def inbound(self, group: str, *rules: dict[str, Any]) -> None:
        self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=list(rules))

    def outbound(self, group: str, *rules: dict[str, Any]) -> None:
        self.ec2.authorize_security_group_egress(GroupId=group, IpPermissions=list(rules))


@pytest.fixture
def network(joined: Endpoint) -> Network:
    return Network()


def judged(joined: Endpoint, *groups: str, kind: str = "ml.p5.48xlarge", **more: Any) -> list[tuple[str, str | None]]:
    vpc = {"SecurityGroupIds": list(groups), "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=[group(InstanceType=kind)], **more))
    return said(look("aws.security-group", aws()))


def test_a_group_that_allows_itself(joined: Endpoint, network: Network) -> None:
    one = network.group()
    network.inbound(one, peer(one))
    assert judged(joined, one) == [("FAIL", "P0")]
    network.outbound(one, peer(one))
    assert judged(joined, one) == [("PASS", None)]


def test_outbound_alone_is_not_enough(joined: Endpoint, network: Network) -> None:
    one = network.group()
    network.outbound(one, peer(one))
    assert judged(joined, one) == [("FAIL", "P0")]


def test_one_of_several_groups_is_enough(joined: Endpoint, network: Network) -> None:
    """Each need not name itself: rules of all groups of an interface add up."""
    one, two, three = network.group(), network.group(), network.group()
    network.inbound(one, peer(one))
    network.outbound(two, peer(one))
    assert judged(joined, one, two, three) == [("PASS", None)]


def test_a_rule_that_names_the_other_group_of_the_same_interface(joined: Endpoint, network: Network) -> None:
    one, two = network.group(), network.group()
    network.inbound(one, peer(two))
    network.outbound(two, peer(one))
    assert judged(joined, one, two) == [("PASS", None)]


def test_a_rule_of_one_protocol_is_not_enough_for_efa(joined: Endpoint, network: Network) -> None:
    one = network.group()
    tcp = peer(one, IpProtocol="tcp", FromPort=0, ToPort=65535)
    network.inbound(one, tcp)
    network.outbound(one, tcp)
    assert judged(joined, one) == [("FAIL", "P0"), ("FAIL", "P0")]
    assert judged(joined, one, kind="ml.g5.2xlarge") == [("PASS", None)]


def test_an_address_range_does_not_carry_efa(joined: Endpoint, network: Network) -> None:
    one = network.group()
    network.inbound(one, peer(one))
    network.outbound(one, world())
    assert judged(joined, one) == [("FAIL", "P0")]
    assert judged(joined, one, kind="ml.g5.2xlarge") == [("PASS", None)]


def test_address_ranges_that_are_not_everything_are_not_judged(joined: Endpoint, network: Network) -> None:
    one = network.group()
    network.inbound(one, peer(one))
    network.outbound(one, world(cidr="10.0.0.0/16"))
    assert judged(joined, one, kind="ml.g5.2xlarge") == [("UNKNOWN", None)]


def test_a_few_ports_are_not_all(joined: Endpoint, network: Network) -> None:
    one = network.group()
    few = peer(one, IpProtocol="tcp", FromPort=29500, ToPort=29600)
    network.inbound(one, few)
    network.outbound(one, few)
    assert judged(joined, one, kind="ml.g5.2xlarge") == [("FAIL", "P0"), ("FAIL", "P0")]


def test_another_group_is_not_this_one(joined: Endpoint, network: Network) -> None:
    one, other = network.group(), network.group()
    network.inbound(one, peer(other))
    network.outbound(one, peer(other))
    assert judged(joined, one) == [("FAIL", "P0"), ("FAIL", "P0")]


def test_an_instance_group_may_have_groups_of_its_own(joined: Endpoint, network: Network) -> None:
    """OverrideVpcConfig: the cluster's group is good, that of the workers is not."""
    good, bad = network.group(), network.group()
    network.inbound(good, peer(good))
    network.outbound(good, peer(good))
    own = {"SecurityGroupIds": [bad], "Subnets": ["subnet-2"]}
    groups = [group(InstanceGroupName="controller", InstanceType="ml.m5.xlarge"), group(OverrideVpcConfig=own)]
    vpc = {"SecurityGroupIds": [good], "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=groups))
    found = look("aws.security-group", aws())
    within = [finding for finding in found if finding.status == "FAIL"]
    assert len(within) == 2 and all("workers" in finding.text and bad in finding.text for finding in within)
    assert {said([finding])[0] for finding in found if finding not in within} == {("WARN", "P1")}


def test_two_sets_of_groups_that_allow_each_other(joined: Endpoint, network: Network) -> None:
    one, two = network.group(), network.group()
    for mine in (one, two):
        network.inbound(mine, peer(one), peer(two))
        network.outbound(mine, peer(one), peer(two))
    own = {"SecurityGroupIds": [two], "Subnets": ["subnet-2"]}
    groups = [group(), group(InstanceGroupName="more", OverrideVpcConfig=own)]
    vpc = {"SecurityGroupIds": [one], "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=groups))
    assert said(look("aws.security-group", aws())) == [("PASS", None)]


@pytest.mark.parametrize(
    ("kind", "current", "target", "expected"),
    [
        ("ml.m5.xlarge", 1, 1, {("PASS", None)}),  # a login: it has nobody to reach there
        ("ml.m5.xlarge", 2, 2, {("WARN", "P1")}),
        ("ml.m5.xlarge", None, None, {("WARN", "P1")}),
        ("ml.g5.2xlarge", 1, 1, {("PASS", None)}),
        ("ml.g5.2xlarge", 1, 4, {("FAIL", "P0")}),
        ("ml.p5.48xlarge", 1, 1, {("FAIL", "P0")}),  # AWS's own EFA check runs there when it is made
    ],
)
def test_rules_inside_a_group_are_for_those_who_have_peers_in_it(
    joined: Endpoint, network: Network, kind: str, current: Any, target: Any, expected: set[tuple[str, str | None]]
) -> None:
    one = network.group()
    counts = {"CurrentCount": current, "TargetCount": target}
    mine = {key: value for key, value in group(InstanceType=kind, **counts).items() if value is not None}
    vpc = {"SecurityGroupIds": [one], "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=[mine]))
    assert set(said(look("aws.security-group", aws()))) == expected


@pytest.mark.parametrize(
    ("ports", "controller", "between"),
    [
        ((6817, 6818), "ml.c5.xlarge", {("UNKNOWN", None)}),  # Slurm's own may be all that is meant
        (None, "ml.c5.xlarge", {("WARN", "P1")}),
        ((0, 65535), "ml.c5.xlarge", set()),
        ((6817, 6818), "ml.p5.48xlarge", {("WARN", "P1")}),  # EFA needs protocol -1
    ],
)
def test_some_ports_between_groups_of_other_security_groups(
    joined: Endpoint,
    network: Network,
    ports: tuple[int, int] | None,
    controller: str,
    between: set[tuple[str, str | None]],
) -> None:
    one, two = network.group(), network.group()
    for mine, other in ((one, two), (two, one)):
        rules = [peer(mine)]
        if ports is not None:
            rules.append(peer(other, IpProtocol="tcp", FromPort=ports[0], ToPort=ports[1]))
        network.inbound(mine, *rules)
        network.outbound(mine, *rules)
    own = {"SecurityGroupIds": [two], "Subnets": ["subnet-2"]}
    groups = [group(), group(InstanceGroupName="head", InstanceType=controller, OverrideVpcConfig=own)]
    vpc = {"SecurityGroupIds": [one], "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=groups))
    assert set(said(look("aws.security-group", aws()))) == (between or {("PASS", None)})


def test_a_flexible_group_has_efa_by_any_of_its_types_or_its_interface(joined: Endpoint, network: Network) -> None:
    one = network.group()
    tcp = peer(one, IpProtocol="tcp", FromPort=0, ToPort=65535)
    network.inbound(one, tcp)
    network.outbound(one, tcp)
    vpc = {"SecurityGroupIds": [one], "Subnets": ["subnet-1"]}
    types = [
        {"InstanceType": "ml.g5.2xlarge", "CurrentCount": 1},
        {"InstanceType": "ml.p5.48xlarge", "CurrentCount": 1},
    ]
    for more in ({"InstanceTypeDetails": types}, {"NetworkInterface": {"InterfaceType": "efa"}}):
        joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=[{"InstanceGroupName": "g", **more}]))
        assert said(look("aws.security-group", aws())) == [("FAIL", "P0"), ("FAIL", "P0")]
    joined.says(CLUSTER, cluster(VpcConfig=vpc, InstanceGroups=[{"InstanceGroupName": "g"}]))
    assert said(look("aws.security-group", aws())) == [("PASS", None)]


def test_a_denied_read_is_unknown_and_no_missing_rule(joined: Endpoint) -> None:
    joined.says(GROUPS, Error("UnauthorizedOperation", "no", 403))
    assert judged(joined, "sg-1") == [("UNKNOWN", None)]


def test_a_group_that_is_not_there_is_unknown(joined: Endpoint, network: Network) -> None:
    assert judged(joined, "sg-00000000") == [("UNKNOWN", None)]


def test_a_cluster_without_a_vpc_of_its_own(joined: Endpoint) -> None:
    joined.says(CLUSTER, cluster(VpcConfig=None))
    assert said(look("aws.security-group", aws())) == [("NOT-APPLICABLE", None)]


def test_the_finding_has_what_the_guide_needs(joined: Endpoint, network: Network) -> None:
    one = network.group()
    network.inbound(one, peer(one))
    vpc = {"SecurityGroupIds": [one], "Subnets": ["subnet-1"]}
    joined.says(CLUSTER, cluster(VpcConfig=vpc))
    (finding,) = look("aws.security-group", aws())
    place = {"cluster": "training", "region": "us-west-2", "log_group": LOG_GROUP}
    assert finding.values == {"group_id": one, "peer_id": one, "direction": "outbound", **place}
    assert finding.proofs[0].source == f"aws ec2 describe-security-groups --group-ids {one} --region us-west-2"


@pytest.mark.parametrize(
    ("rule", "efa", "plain"),
    [
        (peer("sg-1"), True, True),
        (peer("sg-1", IpProtocol="tcp", FromPort=0, ToPort=65535), False, True),
        (peer("sg-1", IpProtocol="6", FromPort=1024, ToPort=65535), False, True),
        (peer("sg-1", IpProtocol="tcp", FromPort=1025, ToPort=65535), False, False),
        (peer("sg-1", IpProtocol="udp", FromPort=0, ToPort=65535), False, False),
        (peer("sg-1", IpProtocol="tcp"), False, False),
        (peer("sg-2"), False, False),
        (world(), False, True),
        (world(cidr="10.0.0.0/8"), False, False),
        ({"IpProtocol": "-1", "UserIdGroupPairs": [{}]}, False, False),
        ({}, False, False),
    ],
)
def test_one_rule(rule: dict[str, Any], efa: bool, plain: bool) -> None:
    rules = [read_rules({"IpPermissions": [rule]}, "IpPermissions")]
    assert allows(rules, ["sg-1"], efa=True) == efa
    assert allows(rules, ["sg-1"], efa=False) == plain
    assert not allows([read_rules({"IpPermissionsEgress": [rule]}, "IpPermissions")], ["sg-1"], efa=False)
