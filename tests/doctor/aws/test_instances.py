"""Names and instance ids: exactly, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.aws.cluster import Instance, read_cluster, read_event, read_instance
from nccl_slurm.doctor.aws.instances import address_in, join
from nccl_slurm.doctor.aws.place import Member
from tests.doctor.aws.world import Node, instance, members, nodes, summary


def api(*numbers: int) -> list[Instance]:
    found = [read_instance(summary(number)) for number in numbers]
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ip-10-1-2-3", "10.1.2.3"),
        ("ip-10-1-2-3.us-west-2.compute.internal", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("ip-10-1-2-3-4", None),
        ("ip-10-1-2", None),
        ("ip-10-1-2-300", None),
        ("node1", None),
        ("", None),
        (None, None),
    ],
)
def test_the_address_in_a_name(name: str | None, address: str | None) -> None:
    assert address_in(name) == address


def test_by_the_file_alone() -> None:
    assert join(nodes(2), members(2), []).instance == {"ip-10-0-0-1": instance(1), "ip-10-0-0-2": instance(2)}


def test_by_the_api_alone() -> None:
    assert join(nodes(2), None, api(1, 2)).instance == {"ip-10-0-0-1": instance(1), "ip-10-0-0-2": instance(2)}


def test_a_name_is_not_matched_by_a_part_of_it() -> None:
    """Both ``ip-10-0-0-4`` as a part of ``ip-10-0-0-40``, and a dotted address in dashed names, occur in the wild."""
    found = join([Node("ip-10-0-0-4"), Node("ip-10-0-0-40")], None, api(40))
    assert found.instance == {"ip-10-0-0-40": instance(40)}
    assert found.unknown == ("ip-10-0-0-4",)


def test_the_long_dns_name_and_the_short_name_of_slurm_are_one() -> None:
    one = Instance("i-00000001", host="worker-7.cluster.internal")
    assert join([Node("worker-7")], None, [one]).instance == {"worker-7": "i-00000001"}
    assert join([Node("Worker-7.other")], None, [one]).instance == {"Worker-7.other": "i-00000001"}
    assert join([Node("worker")], None, [one]).unknown == ("worker",)


def test_a_node_by_its_address_whatever_its_name() -> None:
    found = join([Node("gpu1", "gpu1", "10.0.0.1")], members(1), [])
    assert found.instance == {"gpu1": instance(1)}


def test_after_a_replacement_the_api_counts_and_the_difference_is_told() -> None:
    new = Instance(instance(9), host="ip-10-0-0-1.us-west-2.compute.internal")
    found = join(nodes(1), members(1), [new])
    assert found.instance == {"ip-10-0-0-1": instance(9)}
    assert found.stale == {"ip-10-0-0-1": (instance(1), instance(9))}


def test_two_nodes_of_one_instance_are_none() -> None:
    found = join([Node("a", address="10.0.0.1"), Node("b", address="10.0.0.1")], members(1), [])
    assert (found.instance, dict(found.doubled)) == ({}, {instance(1): ["a", "b"]})


def test_two_instances_of_one_address_are_none() -> None:
    twice = [Member(instance(1), "10.0.0.1", None), Member(instance(2), "10.0.0.1", None)]
    assert join(nodes(1), twice, []).unknown == ("ip-10-0-0-1",)


_VALUE = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=3), max_size=2)
_KEYS = [
    "InstanceId",
    "InstanceStatus",
    "PrivateDnsHostname",
    "Orchestrator",
    "VpcConfig",
    "InstanceGroups",
    "NodeRecovery",
    "EventTime",
    "Description",
    "CurrentCount",
]


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUE))
def test_replies_of_any_form_are_read(reply: dict[str, object]) -> None:
    read_cluster(reply)
    read_instance(reply)
    read_event(reply)
    read_cluster({"InstanceGroups": [reply], "Orchestrator": reply, "VpcConfig": reply})
    read_instance({"InstanceId": "i-1", "InstanceStatus": reply})
