"""Each AWS check both ways, by replies over HTTP; and what was not observed is never PASS."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.doctor.aws.checks import checks
from nccl_slurm.doctor.aws.place import Place
from nccl_slurm.doctor.aws.rows import load
from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.pointer import commands
from tests.doctor.aws.endpoint import Endpoint, Error
from tests.doctor.aws.world import (
    ACCOUNT,
    ARN,
    LOG_GROUP,
    SINCE,
    UNTIL,
    aws,
    cluster,
    detection,
    event,
    group,
    instance,
    line,
    listed,
    look,
    members,
    nodes,
    said,
    summary,
)

CLUSTER, NODES, EVENTS = "sagemaker:DescribeCluster", "sagemaker:ListClusterNodes", "sagemaker:ListClusterEvents"
LOGS = "logs:FilterLogEvents"
VALIDATION = Error("ValidationException", "This operation is only supported for Continuous clusters")
ALL = [check.id for check in checks()]
#: What each check asks first.
ASKS = {
    "aws.credentials": "sts:GetCallerIdentity",
    "aws.orchestrator": CLUSTER,
    "aws.cluster-status": CLUSTER,
    "aws.node-recovery": CLUSTER,
    "aws.capacity": CLUSTER,
    "aws.node-status": NODES,
    "aws.instance-map": NODES,
    "aws.events": EVENTS,
    "aws.health-agent": LOGS,
    "aws.deep-check": LOGS,
    "aws.security-group": CLUSTER,
}


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize("name", ALL)
def test_a_denied_call_is_unknown_and_names_the_permission(endpoint: Endpoint, name: str) -> None:
    endpoint.says(ASKS[name], Error("AccessDeniedException", "no", 403))
    finding = only(look(name, aws(chosen=nodes(2))))
    assert finding.status == "UNKNOWN"
    assert f"{ASKS[name]} is denied" in finding.text


@pytest.mark.parametrize("name", ALL)
def test_a_failing_call_is_unknown(endpoint: Endpoint, name: str) -> None:
    endpoint.says(ASKS[name], Error("InternalFailure", "sorry", 500))
    finding = only(look(name, aws(chosen=nodes(2))))
    assert finding.status == "UNKNOWN" and "InternalFailure" in finding.text


@pytest.mark.parametrize("name", [name for name in ALL if name != "aws.credentials"])
def test_an_empty_reply_is_never_pass(endpoint: Endpoint, name: str) -> None:
    for action in (CLUSTER, NODES, LOGS):
        endpoint.says(action, {})
    endpoint.says(EVENTS, {"Events": []})
    findings = look(name, aws(chosen=nodes(2)))
    allowed = {"aws.events": {"PASS"}, "aws.deep-check": {"NOT-APPLICABLE"}}.get(name, {"UNKNOWN"})
    assert {finding.status for finding in findings} == allowed


@pytest.mark.parametrize("name", ALL)
def test_where_nothing_is_of_hyperpod_nothing_is_asked(endpoint: Endpoint, name: str) -> None:
    for chosen in (nodes(2), []):
        finding = only(look(name, aws(Place(region="us-west-2"), chosen)))
        assert finding.status == "NOT-APPLICABLE"
        assert "site.aws_cluster" in finding.text
    assert endpoint.calls == []


@pytest.mark.parametrize("name", ALL)
def test_a_hyperpod_cluster_without_a_name_is_unknown(endpoint: Endpoint, name: str) -> None:
    place = Place(region="us-west-2", hyperpod=True, unread="/opt/ml/config/resource_config.json: Permission denied")
    finding = only(look(name, aws(place, nodes(2))))
    assert finding.status == "UNKNOWN" and "Permission denied" in finding.text


def test_credentials(joined: Endpoint) -> None:
    finding = only(look("aws.credentials", aws()))
    assert (finding.status, finding.values["account"]) == ("PASS", ACCOUNT)
    other = Place(cluster="training", arn=ARN.replace(ACCOUNT, "999999999999"), region="us-west-2", hyperpod=True)
    finding = only(look("aws.credentials", aws(other)))
    assert said([finding]) == [("WARN", "P1")]
    assert ACCOUNT in finding.text and "999999999999" in finding.text


@pytest.mark.parametrize(
    ("reply", "manager", "slurm", "status", "word"),
    [
        (
            {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/x"}}},
            None,
            None,
            "WARN",
            "EKS",
        ),
        ({"Orchestrator": {"Slurm": {}}}, None, None, "PASS", "Slurm"),
        ({}, "slurm", None, "PASS", "provisioning_parameters.json"),
        ({}, None, True, "PASS", "answers here"),
        ({}, None, False, "UNKNOWN", "no Slurm answers"),
        ({}, None, None, "UNKNOWN", "no Slurm answers"),
    ],
)
def test_orchestrator(
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    reply: dict[str, Any],
    manager: str | None,
    slurm: bool | None,
    status: str,
    word: str,
) -> None:
    """A kubeconfig that lies there tells nothing."""
    monkeypatch.setenv("KUBECONFIG", "/etc/passwd")
    endpoint.says(CLUSTER, cluster(**reply))
    place = Place(cluster="training", arn=ARN, region="us-west-2", hyperpod=True, manager=manager)
    finding = only(look("aws.orchestrator", aws(place, slurm=slurm)))
    assert finding.status == status and word in finding.text


def test_on_eks_it_says_what_is_covered_and_what_is_not(endpoint: Endpoint) -> None:
    endpoint.says(
        CLUSTER, cluster(Orchestrator={"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/x"}})
    )
    text = only(look("aws.orchestrator", aws())).text
    rows = load()
    assert rows.covered and rows.uncovered
    assert all(what in text for what in (*rows.covered, *rows.uncovered))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("InService", ("PASS", None)),
        ("Updating", ("WARN", "P2")),
        ("Failed", ("FAIL", "P0")),
        ("Deleting", ("FAIL", "P0")),
        ("Hovering", ("WARN", "P1")),
        (None, ("UNKNOWN", None)),
    ],
)
def test_cluster_status(endpoint: Endpoint, status: str | None, expected: tuple[str, str | None]) -> None:
    endpoint.says(CLUSTER, cluster(ClusterStatus=status, FailureMessage="because"))
    finding = only(look("aws.cluster-status", aws()))
    assert (finding.status, finding.priority) == expected
    assert ("because" in finding.text) == (status is not None)


@pytest.mark.parametrize(
    ("told", "expected"),
    [("Automatic", ("PASS", None)), ("None", ("WARN", "P2")), ("Later", ("WARN", "P2")), (None, ("UNKNOWN", None))],
)
def test_node_recovery(endpoint: Endpoint, told: str | None, expected: tuple[str, str | None]) -> None:
    endpoint.says(CLUSTER, cluster(NodeRecovery=told))
    assert said(look("aws.node-recovery", aws())) == [expected]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([group()], [("PASS", None)]),
        ([group(CurrentCount=1)], [("WARN", "P1")]),
        ([group(), group(CurrentCount=0, TargetCount=4)], [("WARN", "P1")]),
        ([group(Status="Degraded")], [("WARN", "P1")]),
        ([group(Status="Failed", CurrentCount=0)], [("FAIL", "P1"), ("WARN", "P1")]),
        ([group(Status="Odd")], [("WARN", "P1")]),
        ([group(), {"InstanceGroupName": "bare"}], [("UNKNOWN", None)]),
        ([], [("UNKNOWN", None)]),
    ],
)
def test_capacity(joined: Endpoint, groups: list[dict[str, Any]], expected: list[tuple[str, str | None]]) -> None:
    joined.says(CLUSTER, cluster(InstanceGroups=groups, VpcConfig=None))
    assert said(look("aws.capacity", aws())) == expected


def test_capacity_with_a_training_plan_says_so(endpoint: Endpoint) -> None:
    endpoint.says(CLUSTER, cluster(InstanceGroups=[group(CurrentCount=0, TrainingPlanStatus="Active")], VpcConfig=None))
    finding = only(look("aws.capacity", aws()))
    assert finding.values["plan"] == "Active" and "training plan Active" in finding.text


def test_node_status_is_told_of_each_page(endpoint: Endpoint) -> None:
    endpoint.says(
        NODES,
        listed(summary(1), token="é?"),
        listed(summary(2, "Failure", InstanceStatus={"Status": "Failure", "Message": "no capacity"})),
    )
    good, bad = look("aws.node-status", aws(chosen=nodes(2)))
    assert (good.status, list(good.nodes)) == ("PASS", ["ip-10-0-0-1"])
    assert (bad.status, bad.priority, list(bad.nodes)) == ("FAIL", "P0", ["ip-10-0-0-2"])
    assert "no capacity" in bad.proofs[0].line and bad.values["instance_id"] == instance(2)


@pytest.mark.parametrize("status", ["Pending", "ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "New"])
def test_a_node_that_does_not_run_is_told(endpoint: Endpoint, status: str) -> None:
    endpoint.says(NODES, listed(summary(1, status)))
    finding = only(look("aws.node-status", aws(chosen=nodes(1))))
    assert finding.status == "WARN" and finding.text.startswith(status)


def test_a_status_that_is_not_told_is_unknown(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1, None)))
    assert said(look("aws.node-status", aws())) == [("UNKNOWN", None)]


def test_a_list_that_is_cut_leaves_the_rest_unknown(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1), token="a"), Error("ThrottlingException"))
    assert said(look("aws.node-status", aws())) == [("PASS", None), ("UNKNOWN", None)]


def test_an_instance_on_two_pages_is_one(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1), token="a"), listed(summary(1)))
    (finding,) = look("aws.node-status", aws(chosen=nodes(1)))
    assert list(finding.nodes) == ["ip-10-0-0-1"]


def test_instances_of_other_nodes_inform_and_no_more(endpoint: Endpoint) -> None:
    """Controllers, login nodes, and what is no node of Slurm's yet."""
    endpoint.says(NODES, listed(summary(1), summary(2, "Failure"), summary(3)))
    good, other = look("aws.node-status", aws(chosen=nodes(1)))
    assert (good.status, list(good.nodes)) == ("PASS", ["ip-10-0-0-1"])
    assert (other.status, other.priority, list(other.nodes)) == ("WARN", "P2", [])
    assert instance(2) in other.text and instance(3) not in other.text


def test_findings_of_nodes_that_are_alike_can_be_folded(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(*(summary(number, "Failure") for number in range(1, 4))))
    findings = look("aws.node-status", aws(chosen=nodes(3)))
    assert len(findings) == 3 and len({finding.text for finding in findings}) == 1
    assert [finding.values["instance_id"] for finding in findings] == [instance(number) for number in range(1, 4)]


def test_an_instance_without_a_host_name_is_described(endpoint: Endpoint) -> None:
    bare = summary(1, PrivateDnsHostname=None)
    endpoint.says(NODES, listed(bare))
    endpoint.says("sagemaker:DescribeClusterNode", {"NodeDetails": {**bare, "PrivatePrimaryIp": "10.0.0.1"}})
    finding = only(look("aws.instance-map", aws(chosen=nodes(1))))
    assert (finding.status, list(finding.nodes)) == ("PASS", ["ip-10-0-0-1"])


def test_instance_map_tells_who_was_replaced_and_who_is_not_known(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(9, PrivateDnsHostname="ip-10-0-0-1.ec2.internal"), summary(2)))
    place = Place(cluster="training", arn=ARN, region="us-west-2", hyperpod=True, members=members(2))
    stale, unknown, good = look("aws.instance-map", aws(place, nodes(3)))
    assert (stale.status, list(stale.nodes), stale.values["instance_id"]) == ("WARN", ["ip-10-0-0-1"], instance(9))
    assert (unknown.status, list(unknown.nodes)) == ("UNKNOWN", ["ip-10-0-0-3"])
    assert (good.status, list(good.nodes)) == ("PASS", ["ip-10-0-0-2"])


def test_the_file_alone_maps_where_the_api_is_denied(endpoint: Endpoint) -> None:
    endpoint.says(NODES, Error("AccessDeniedException"))
    place = Place(cluster="training", arn=ARN, region="us-west-2", hyperpod=True, members=members(1))
    unknown, good = look("aws.instance-map", aws(place, nodes(2)))
    assert (good.status, list(good.nodes)) == ("PASS", ["ip-10-0-0-1"])
    assert unknown.status == "UNKNOWN" and NODES in unknown.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EFA health checks did not run successfully.", ("FAIL", "P0")),
        ("Instance bootstrap failed due to network misconfiguration", ("FAIL", "P1")),
        ("Lifecycle scripts did not run successfully", ("FAIL", "P1")),
        ("Insufficient capacity", ("FAIL", "P1")),
        ("Instance likely experienced a hardware failure", ("FAIL", "P0")),
        ("Failed to provision EC2 Instance", ("FAIL", "P1")),
        ("Instance replacement completed", ("WARN", "P2")),
        ("Reboot of instance requested", ("WARN", "P2")),
        ("The cluster was created", ("PASS", None)),
    ],
)
def test_events_by_their_text(endpoint: Endpoint, text: str, expected: tuple[str, str | None]) -> None:
    endpoint.says(EVENTS, {"Events": [event(text)]})
    finding = only(look("aws.events", aws()))
    assert (finding.status, finding.priority) == expected
    if finding.status != "PASS":
        assert text in finding.proofs[0].line and finding.since == SINCE + 60


@pytest.mark.parametrize(
    ("level", "text", "expected"),
    [
        ("Info", "EFA health checks passed", ("PASS", None)),
        ("Info", "Lifecycle script execution completed successfully", ("PASS", None)),
        (None, "Lifecycle script execution completed with 0 errors", ("PASS", None)),
        ("Info", "No hardware failure detected", ("PASS", None)),
        ("Info", "Rollback not required", ("PASS", None)),
        ("Info", "EFA health checks did not report errors", ("PASS", None)),
        ("Info", "EFA health checks reported errors", ("WARN", "P2")),
        ("Info", "Scheduled reboot was cancelled", ("PASS", None)),
        ("Info", "Hardware failure simulation disabled", ("PASS", None)),
        ("Info", "Insufficient capacity resolved; instance provisioned", ("PASS", None)),
        ("Info", "Rollback was cancelled, and the instance rebooted", ("WARN", "P2")),
        ("Warn", "Hardware failure; replacement was cancelled", ("FAIL", "P0")),
        (None, "Health check found no sign of a hardware failure", ("PASS", None)),
        ("Warn", "EFA health checks are still running", ("WARN", "P2")),
        ("Info", "EFA health checks did not run successfully", ("WARN", "P2")),
        ("Info", "Instance likely experienced a hardware failure", ("WARN", "P2")),
        ("Error", "EFA health checks did not run successfully", ("FAIL", "P0")),
        ("Error", "EFA health checks: code 7", ("FAIL", "P0")),
        (None, "EFA health checks failed on i-1", ("FAIL", "P0")),
        ("Warn", "Lifecycle script timed out", ("FAIL", "P1")),
        ("Error", "No response after a hardware failure", ("FAIL", "P0")),
    ],
)
def test_events_by_their_level(
    endpoint: Endpoint, level: str | None, text: str, expected: tuple[str, str | None]
) -> None:
    more: dict[str, Any] = {"EventLevel": level} if level else {}
    endpoint.says(EVENTS, {"Events": [event(text, **more)]})
    assert said(look("aws.events", aws())) == [expected]


@pytest.mark.parametrize(("level", "status"), [("Error", "WARN"), ("Warn", "WARN"), ("Info", "PASS"), (None, "PASS")])
def test_an_error_that_no_row_knows_is_told(endpoint: Endpoint, level: str | None, status: str) -> None:
    more: dict[str, Any] = {"EventLevel": level} if level else {}
    endpoint.says(EVENTS, {"Events": [event("something new", **more)]})
    assert only(look("aws.events", aws())).status == status


def test_events_outside_of_the_window_say_nothing(endpoint: Endpoint) -> None:
    """The service filters; one that does not is not believed."""
    endpoint.says(EVENTS, {"Events": [event("hardware failure", at=SINCE - 86400.0 * 365)]})
    assert said(look("aws.events", aws())) == [("PASS", None)]
    asked = endpoint.calls[-1].parameters
    assert (asked["EventTimeAfter"], asked["EventTimeBefore"]) == (SINCE, UNTIL)


def test_events_of_all_pages_name_their_nodes(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1), summary(2)))
    one = [event("hardware failure", InstanceId=instance(1), at=SINCE + at) for at in (90, 80)]
    two = event("hardware failure", InstanceId=instance(2))
    endpoint.says(EVENTS, {"Events": one, "NextToken": "n"}, {"Events": [two, event("hardware failure")]})
    first, second, third = look("aws.events", aws(chosen=nodes(2)))
    assert (list(first.nodes), len(first.proofs), first.since) == (["ip-10-0-0-1"], 2, SINCE + 80)
    assert list(second.nodes) == ["ip-10-0-0-2"] and second.values["instance_id"] == instance(2)
    assert list(third.nodes) == [] and first.text == second.text == third.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Instance likely experienced a hardware failure", ("WARN", "P2")),
        ("EFA health checks did not run successfully", ("FAIL", "P0")),  # the next instance meets the same rules
    ],
)
def test_events_of_an_instance_that_is_gone(endpoint: Endpoint, text: str, expected: tuple[str, str]) -> None:
    endpoint.says(NODES, listed(summary(1)))
    endpoint.says(EVENTS, {"Events": [event(text, InstanceId=instance(9))]})
    one = only(look("aws.events", aws(chosen=nodes(1))))
    assert (one.status, one.priority) == expected
    assert not one.nodes and instance(9) in one.text and one.values["instance_id"] == instance(9)


@pytest.mark.parametrize(
    ("chosen", "more", "expected"),
    [
        pytest.param(nodes(2), {}, ("WARN", "P2"), id="of another node"),
        pytest.param(nodes(4), {}, ("FAIL", "P0"), id="of a chosen node"),
        pytest.param(nodes(2), {"by_choice": False}, ("FAIL", "P0"), id="nobody chose: it may be the controller's"),
        pytest.param([*nodes(2), *nodes(9)[8:]], {}, ("FAIL", "P0"), id="one chosen node's instance is not known"),
        pytest.param([], {}, ("FAIL", "P0"), id="Slurm told no node"),
    ],
)
@pytest.mark.parametrize("check", ["aws.events", "aws.health-agent", "aws.deep-check"])
def test_a_fault_of_an_instance_of_no_chosen_node_is_no_fault_of_these(
    endpoint: Endpoint, check: str, chosen: Any, more: Any, expected: tuple[str, str]
) -> None:
    endpoint.says(NODES, listed(*(summary(number) for number in range(1, 5))))
    endpoint.says(EVENTS, {"Events": [event("hardware failure", InstanceId=instance(4))]})
    deep = line(f"DeepHealthCheckResults/{instance(4)}", "faulty instance found: health check failed")
    endpoint.says(LOGS, {"events": [detection(4, "XidHardwareFailure", "Xid 79"), deep]})
    (finding,) = look(check, aws(chosen=chosen, **more))
    assert (finding.status, finding.priority) == expected
    assert list(finding.nodes) == (["ip-10-0-0-4"] if len(chosen) == 4 else [])
    assert finding.values["instance_id"] == instance(4)
    assert list(finding.nodes) or instance(4) in finding.text


@pytest.mark.parametrize(
    ("mode", "error", "status"),
    [
        (None, VALIDATION, "NOT-APPLICABLE"),
        ("Continuous", VALIDATION, "UNKNOWN"),
        (None, Error("AccessDeniedException"), "UNKNOWN"),
    ],
)
def test_clusters_without_events(endpoint: Endpoint, mode: str | None, error: Error, status: str) -> None:
    endpoint.says(EVENTS, error)
    endpoint.says(CLUSTER, cluster(NodeProvisioningMode=mode))
    assert only(look("aws.events", aws())).status == status


XID = 'Node condition NvidiaErrorReboot is now: True, reason: X, message: "NVRM: Xid (PCI:0000:b9:00): 71"'


@pytest.mark.parametrize("key", ["details", "details: "])
@pytest.mark.parametrize(
    ("reason", "text", "expected"),
    [
        ("XidHardwareFailure", XID, ("FAIL", "P0")),
        ("XidHardwareFailure", "NVRM: Xid (PCI:0000:b9:00): 71", ("FAIL", "P0")),
        ("DcgmFailure", "Node condition NvidiaErrorTerminate is now: True", ("FAIL", "P0")),
        ("XidUserAppError", "NVRM: Xid (PCI:0000:b9:00): 31", ("WARN", "P2")),
        ("SomethingNew", "?", ("WARN", "P1")),
    ],
)
def test_health_agent(endpoint: Endpoint, key: str, reason: str, text: str, expected: tuple[str, str | None]) -> None:
    endpoint.says(NODES, listed(summary(7)))
    endpoint.says(LOGS, {"events": [detection(7, reason, text, key)]})
    finding = only(look("aws.health-agent", aws(chosen=nodes(7))))
    assert (finding.status, finding.priority, list(finding.nodes)) == (*expected, ["ip-10-0-0-7"])
    assert text in finding.proofs[0].line and reason in finding.text
    asked = next(call.parameters for call in endpoint.calls if call.action == LOGS)
    assert (asked["logGroupName"], asked["startTime"]) == (LOG_GROUP, int(SINCE * 1000))


def test_lines_outside_of_the_window_or_of_other_streams_say_nothing(endpoint: Endpoint) -> None:
    old = {**detection(7, "XidHardwareFailure", XID), "timestamp": int((SINCE - 1) * 1000)}
    other = {**detection(7, "XidHardwareFailure", XID), "logStreamName": "LifecycleConfig/workers/i-1"}
    alive = line("SagemakerHealthMonitoringAgent/workers/i-1", "alive")
    endpoint.says(LOGS, {"events": [old, other, alive]})
    assert said(look("aws.health-agent", aws())) == [("PASS", None)]


def test_a_silent_health_agent_is_unknown(endpoint: Endpoint) -> None:
    endpoint.says(LOGS, {"events": []})
    assert said(look("aws.health-agent", aws())) == [("UNKNOWN", None)]
    endpoint.says(
        LOGS,
        {"events": []},
        {"events": []},
        {"events": [], "nextToken": "n"},
        {"events": [line("SagemakerHealthMonitoringAgent/a/i", "alive")]},
    )
    endpoint.calls.clear()
    endpoint.says(
        LOGS,
        {"events": []},
        {"events": [], "nextToken": "n"},
        {"events": [line("SagemakerHealthMonitoringAgent/a/i", "alive")]},
    )
    assert said(look("aws.health-agent", aws())) == [("PASS", None)]


def agent_says(number: int) -> dict[str, Any]:
    return line(f"SagemakerHealthMonitoringAgent/workers/{instance(number)}", "alive")


def test_a_living_health_agent_tells_of_its_own_node(endpoint: Endpoint) -> None:
    """The second node's is asked for by itself, and is silent; the third node has no instance."""
    endpoint.says(NODES, listed(summary(1), summary(2)))
    endpoint.says(LOGS, {"events": []}, {"events": [agent_says(1)]}, {"events": []})
    found = {tuple(one.nodes): one.status for one in look("aws.health-agent", aws(chosen=nodes(3)))}
    assert found == {("ip-10-0-0-1",): "PASS", ("ip-10-0-0-2",): "UNKNOWN", ("ip-10-0-0-3",): "UNKNOWN"}


def test_a_health_agent_that_is_asked_for_by_itself(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1), summary(2)))
    endpoint.says(LOGS, {"events": []}, {"events": [agent_says(1)]}, {"events": [agent_says(2)]})
    assert said(look("aws.health-agent", aws(chosen=nodes(2)))) == [("PASS", None)]


def test_a_failed_instance_may_be_that_of_a_node_without_one(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1), summary(9, "Failure")))
    found = look("aws.node-status", aws(chosen=nodes(2)))
    assert said(found) == [("PASS", None), ("UNKNOWN", None), ("FAIL", "P0")]
    assert list(found[1].nodes) == ["ip-10-0-0-2"] and not found[2].nodes and "ip-10-0-0-2" in found[2].text
    assert said(look("aws.node-status", aws(chosen=nodes(1)))) == [("PASS", None), ("WARN", "P2")]


def test_a_log_group_that_is_not_there_is_unknown(endpoint: Endpoint) -> None:
    endpoint.says(LOGS, Error("ResourceNotFoundException", "The specified log group does not exist."))
    for name in ("aws.health-agent", "aws.deep-check"):
        finding = only(look(name, aws()))
        assert finding.status == "UNKNOWN" and "ResourceNotFoundException" in finding.text


def test_the_log_group_by_the_cluster_where_no_file_tells_its_arn(endpoint: Endpoint) -> None:
    endpoint.says(CLUSTER, cluster())
    endpoint.says(LOGS, {"events": []})
    look("aws.deep-check", aws(Place(cluster="training", region="us-west-2", hyperpod=True)))
    assert endpoint.calls[-1].parameters["logGroupName"] == LOG_GROUP


FAULTY = (
    '{"level": "error", "msg": "Encountered FaultyInstance. ERROR:Bandwidth has less than threshold: '
    'Expected minimum threshold :80,NCCL Test output Bw: 30"}'
)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([FAULTY], ("FAIL", "P0")),
        (["Encountered FaultyInstance"], ("FAIL", "P0")),
        (['{"level": "info", "msg": "started"}', FAULTY], ("FAIL", "P0")),
        (['{"level": "info", "msg": "all done"}'], ("PASS", None)),
        (['{"level": "info", "msg": "passed", "faultyInstances": []}'], ("PASS", None)),
        (['{"level": "error", "msg": "retrying S3 upload"}'], ("WARN", "P2")),
        ([], ("NOT-APPLICABLE", None)),
    ],
)
def test_deep_check(endpoint: Endpoint, messages: list[str], expected: tuple[str, str | None]) -> None:
    endpoint.says(NODES, listed(summary(3)))
    stream = f"DeepHealthCheckResults/{instance(3)}"
    endpoint.says(LOGS, {"events": [line(stream, message) for message in messages]})
    finding = only(look("aws.deep-check", aws(chosen=nodes(3))))
    assert (finding.status, finding.priority) == expected
    if finding.status == "FAIL":
        assert list(finding.nodes) == ["ip-10-0-0-3"] and "FaultyInstance" in finding.proofs[0].line


PASSED = '{"level": "info", "msg": "deep health check passed"}'


@pytest.mark.parametrize(
    ("message", "at", "expected"),
    [
        (PASSED, 200, ("WARN", "P2")),
        ("Deep health checks completed successfully", 200, ("WARN", "P2")),
        (PASSED, 50, ("FAIL", "P0")),  # before the fault
        ("DCGM passed", 200, ("FAIL", "P0")),  # one of its tests
        ("deep health check: 0 passed", 200, ("FAIL", "P0")),
        ('{"level": "error", "msg": "deep health check not passed"}', 200, ("FAIL", "P0")),
    ],
)
def test_a_deep_check_that_passed_later(
    endpoint: Endpoint, message: str, at: float, expected: tuple[str, str | None]
) -> None:
    endpoint.says(NODES, listed(summary(3)))
    stream = f"DeepHealthCheckResults/{instance(3)}"
    endpoint.says(LOGS, {"events": [line(stream, FAULTY), line(stream, message, SINCE + at)]})
    finding = only(look("aws.deep-check", aws(chosen=nodes(3))))
    assert (finding.status, finding.priority, list(finding.nodes)) == (*expected, ["ip-10-0-0-3"])
    other = line(f"DeepHealthCheckResults/{instance(4)}", PASSED, SINCE + 300)
    endpoint.says(LOGS, {"events": [line(stream, FAULTY), other]})
    assert said(look("aws.deep-check", aws(chosen=nodes(3)))) == [("FAIL", "P0")]


def test_what_was_found_on_an_instance_that_is_gone_is_history(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(summary(1)))
    for name, told in (
        ("aws.deep-check", line(f"DeepHealthCheckResults/{instance(9)}", FAULTY)),
        ("aws.health-agent", detection(9, "XidHardwareFailure", XID)),
    ):
        endpoint.says(LOGS, {"events": [told]})
        one = only(look(name, aws(chosen=nodes(1))))
        assert (one.status, one.priority, list(one.nodes)) == ("WARN", "P2", [])
        assert "no longer in the cluster" in one.text and instance(9) in one.text


def test_an_instance_id_is_no_host(endpoint: Endpoint) -> None:
    """A login node's: it is in the cluster, and no node of Slurm's."""
    endpoint.says(NODES, listed(summary(1), summary(9)))
    endpoint.says(LOGS, {"events": [line(f"DeepHealthCheckResults/{instance(9)}", FAULTY)]})
    one = only(look("aws.deep-check", aws(chosen=nodes(1), by_choice=False)))
    assert (one.status, list(one.nodes)) == ("FAIL", []) and instance(9) in one.text
    assert not any(instance(9) in command for command in commands(one))
    assert any(LOG_GROUP in command for command in commands(one))
    endpoint.says(NODES, listed(summary(1, "Failure"), summary(2, "Failure")))
    one = only(look("aws.node-status", aws()))
    assert (one.status, one.priority, list(one.nodes)) == ("FAIL", "P0", []) and instance(2) in one.text


def test_a_call_is_asked_once_for_all_checks(endpoint: Endpoint) -> None:
    endpoint.says(CLUSTER, Error("AccessDeniedException"))
    observed = aws()
    for name in ("aws.orchestrator", "aws.cluster-status", "aws.node-recovery", "aws.capacity"):
        look(name, observed)
    assert endpoint.count(CLUSTER) == 1


def test_the_words_of_the_service_are_all_rows(endpoint: Endpoint) -> None:
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    assert set(model.shape_for("ClusterStatus").enum) <= set(load().cluster)
    assert set(model.shape_for("ClusterInstanceStatus").enum) <= set(load().instance)
    assert set(model.shape_for("InstanceGroupStatus").enum) <= set(load().group)


def test_rows_have_a_source_and_match_something() -> None:
    rows = load()
    words = [*rows.cluster.values(), *rows.group.values(), *rows.instance.values(), *rows.event, *rows.agent]
    assert all(word.source and word.means for word in words)
    assert all((word.priority is None) == (word.status == "PASS") for word in words)
    assert all(word.match and all(part == part.lower() for part in word.match) for word in (*rows.event, *rows.agent))


def test_where_another_place_is_told_the_proof_names_it(endpoint: Endpoint) -> None:
    endpoint.says(CLUSTER, cluster())
    place = replace(aws().place, cluster="other", arn=None, region="eu-west-1")
    finding = only(look("aws.cluster-status", aws(place)))
    assert finding.proofs[0].source == "aws sagemaker describe-cluster --cluster-name other --region eu-west-1"


@pytest.mark.parametrize("name", ALL)
def test_findings_have_what_the_guide_fills_in(joined: Endpoint, name: str) -> None:
    joined.says(CLUSTER, cluster(ClusterStatus="Failed", NodeRecovery="None", InstanceGroups=[group(CurrentCount=1)]))
    for finding in look(name, aws(chosen=nodes(1))):
        if finding.status != "NOT-APPLICABLE":
            assert (finding.values["cluster"], finding.values["region"]) == ("training", "us-west-2")


def test_each_field_that_is_read_exists_in_the_api() -> None:
    """``PrivateDnsName``, ``ClusterEventSummaries`` and the like are read by others, and come never."""
    import botocore.session

    from nccl_slurm.doctor.aws import cluster as readers
    from nccl_slurm.doctor.aws import observed

    model = botocore.session.get_session().get_service_model("sagemaker")
    known: set[str] = set()
    for operation in ("DescribeCluster", "ListClusterNodes", "DescribeClusterNode", "ListClusterEvents"):
        known |= set(_members(model.operation_model(operation).output_shape))
    read = set(re.findall(r'get\("([A-Z][A-Za-z]+)"\)', inspect.getsource(readers)))
    read |= set(re.findall(r'"list_cluster_\w+", "(\w+)"', inspect.getsource(observed)))
    assert {"PrivateDnsHostname", "ClusterNodeSummaries", "Events", "Description", "OverrideVpcConfig"} <= read
    assert read <= known


def _members(shape: Any) -> Iterator[str]:
    if shape.type_name == "list":
        yield from _members(shape.member)
    elif shape.type_name == "structure":
        for name, inner in shape.members.items():
            yield name
            yield from _members(inner)
