"""Calls over real HTTP: pages, throttling, denial, silence. What fails is UNKNOWN and names what is missing."""

from __future__ import annotations

import builtins
import socket
import sys
from typing import Any

import pytest

from nccl_slurm.doctor.aws.client import POLICY, Client, Limits, Refused
from nccl_slurm.doctor.check import NotObserved
from tests.doctor.aws.endpoint import Endpoint, Error, Raw
from tests.doctor.aws.world import LIMITS, cluster, listed, summary

REGION = "us-west-2"
NODES = "sagemaker:ListClusterNodes"


def client(**more: Any) -> Client:
    return Client(REGION, Limits(**{**vars(LIMITS), **more}))


def all_nodes(of: Client) -> Any:
    return of.pages("sagemaker", "list_cluster_nodes", "ClusterNodeSummaries", ClusterName="training", MaxResults=100)


@pytest.mark.parametrize("token", ["AbC+/=", "a token: with «anything», 100 % of it\n", "0", "x" * 4000])
def test_any_text_is_a_page_token(endpoint: Endpoint, token: str) -> None:
    endpoint.says(NODES, listed(summary(1), token=token), listed(summary(2)))
    found = all_nodes(client())
    assert [one["InstanceId"][-1] for one in found.items] == ["1", "2"]
    assert found.cut == ""
    assert endpoint.calls[1].parameters["NextToken"] == token


def test_all_pages_are_read(endpoint: Endpoint) -> None:
    pages = [listed(*(summary(100 * page + at) for at in range(100)), token=f"{page}") for page in range(30)]
    endpoint.says(NODES, *pages, listed(summary(3000)))
    found = all_nodes(client())
    assert (len(found.items), found.cut) == (3001, "")


def test_an_empty_page_with_a_token_is_not_the_end(endpoint: Endpoint) -> None:
    endpoint.says(NODES, listed(token="a"), listed(token="b"), listed(summary(1)))
    assert len(all_nodes(client()).items) == 1


@pytest.mark.parametrize(
    ("replies", "limits", "seen", "why"),
    [
        ([listed(summary(1), token="a"), listed(summary(2), token="a")], {}, 2, "one page twice"),
        ([listed(summary(1), token="a"), Error("ThrottlingException")], {}, 1, "throttled 2 times"),
        (
            [listed(summary(1), token="a"), Error("AccessDeniedException")],
            {},
            1,
            "sagemaker:ListClusterNodes is denied",
        ),
        ([listed(summary(1), token="a"), listed(summary(2), token="b")], {"pages": 2}, 2, "more than 2 pages"),
    ],
)
def test_a_list_that_is_cut_says_so(
    endpoint: Endpoint, replies: list[Any], limits: dict[str, Any], seen: int, why: str
) -> None:
    endpoint.says(NODES, *replies)
    found = all_nodes(client(**limits))
    assert len(found.items) == seen
    assert why in found.cut


def test_all_calls_together_have_a_limit(endpoint: Endpoint) -> None:
    endpoint.says(NODES, *(listed(summary(number), token=f"{number}") for number in range(9)))
    ticks = iter(range(100))
    asked = Client(REGION, Limits(tries=2, all_s=10.0), clock=lambda: 3.0 * next(ticks))
    found = all_nodes(asked)
    assert 0 < len(found.items) < 5 and "took more than 10 s" in found.cut
    with pytest.raises(NotObserved, match="was not asked"):
        asked.ask("sagemaker", "describe_cluster", ClusterName="training")
    assert endpoint.count("sagemaker:DescribeCluster") == 0


def test_throttling_is_tried_again_and_bounded(endpoint: Endpoint) -> None:
    endpoint.says(NODES, Error("ThrottlingException", "Rate exceeded"), listed(summary(1)))
    assert len(all_nodes(client()).items) == 1
    assert endpoint.count(NODES) == 2
    endpoint.says("sagemaker:DescribeCluster", Error("ThrottlingException", "Rate exceeded"))
    with pytest.raises(Refused, match="was throttled 2 times") as told:
        client().ask("sagemaker", "describe_cluster", ClusterName="training")
    assert told.value.code == "ThrottlingException"
    assert endpoint.count("sagemaker:DescribeCluster") == 2


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "code", "action"),
    [
        ("sagemaker", "describe_cluster", {"ClusterName": "c"}, "AccessDeniedException", "sagemaker:DescribeCluster"),
        ("logs", "filter_log_events", {"logGroupName": "g"}, "AccessDeniedException", "logs:FilterLogEvents"),
        ("ec2", "describe_security_groups", {}, "UnauthorizedOperation", "ec2:DescribeSecurityGroups"),
        ("sts", "get_caller_identity", {}, "AccessDenied", "sts:GetCallerIdentity"),
    ],
)
def test_a_denial_names_the_permission(
    endpoint: Endpoint, service: str, operation: str, parameters: dict[str, Any], code: str, action: str
) -> None:
    endpoint.says(action, Error(code, "User is not authorized", 403))
    with pytest.raises(NotObserved) as told:
        client().ask(service, operation, **parameters)
    assert action in str(told.value) and POLICY in str(told.value)


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"])
def test_credentials_that_are_refused_are_to_be_renewed(endpoint: Endpoint, code: str) -> None:
    endpoint.says("sagemaker:DescribeCluster", Error(code))
    with pytest.raises(NotObserved, match="renew them"):
        client().ask("sagemaker", "describe_cluster", ClusterName="c")


JUNK = [b"", b"{", b"[]", b"null", b'"x"', b"<html>proxy</html>", b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("body", JUNK, ids=range(len(JUNK)))
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_is_none_is_not_observed(endpoint: Endpoint, body: bytes, status: int) -> None:
    """Or is one that tells nothing; it never raises anything else."""
    asked = client(tries=1)
    for service, operation, action, parameters in (
        ("sagemaker", "describe_cluster", "sagemaker:DescribeCluster", {"ClusterName": "c"}),
        ("ec2", "describe_security_groups", "ec2:DescribeSecurityGroups", {}),
        ("sts", "get_caller_identity", "sts:GetCallerIdentity", {}),
    ):
        endpoint.says(action, Raw(body, status))
        try:
            reply = asked.ask(service, operation, **parameters)
        except NotObserved as error:
            assert str(error)
        else:
            assert set(reply) <= {"ResponseMetadata"}


def test_no_credentials(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(NotObserved, match="no AWS credentials here"):
        client().ask("sagemaker", "describe_cluster", ClusterName="c")


def test_no_region(endpoint: Endpoint) -> None:
    with pytest.raises(NotObserved, match="--region"):
        Client(None, LIMITS).ask("sagemaker", "describe_cluster", ClusterName="c")


def test_a_service_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{port}")
    asked = client()
    for _ in range(2):
        with pytest.raises(NotObserved, match="sagemaker does not answer"):
            asked.ask("sagemaker", "describe_cluster", ClusterName="c")
    endpoint.says("sagemaker:DescribeCluster", cluster())
    monkeypatch.delenv("AWS_ENDPOINT_URL_SAGEMAKER")
    with pytest.raises(NotObserved):
        asked.ask("sagemaker", "describe_cluster", ClusterName="c")
    assert endpoint.calls == []


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("boto3", "botocore"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(NotObserved, match=r"nccl-slurm\[aws\]"):
        client().ask("sts", "get_caller_identity")


def test_boto3_is_imported_at_the_first_call() -> None:
    import subprocess

    code = "import sys, nccl_slurm.doctor.aws.checks as c; c.checks(); print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
