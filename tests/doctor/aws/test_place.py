"""Which cluster and region: each source, and who comes before whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.aws.place import Member, find, read_members
from tests.doctor.aws.world import ARN

CONFIG = {
    "ClusterConfig": {"ClusterName": "training", "ClusterArn": ARN},
    "InstanceGroups": [
        {
            "Name": "workers",
            "InstanceType": "ml.p5.48xlarge",
            "Instances": [
                {"InstanceName": "workers-1", "InstanceId": "i-0123456789abcdef0", "CustomerIpAddress": "10.0.0.1"},
                {"InstanceName": "workers-2", "InstanceId": "no id", "CustomerIpAddress": "10.0.0.2"},
            ],
        }
    ],
}


def host(tmp_path: Path, config: object = CONFIG, parameters: object = None) -> str:
    folder = tmp_path / "opt/ml/config"
    folder.mkdir(parents=True)
    (folder / "resource_config.json").write_text(json.dumps(config))
    if parameters is not None:
        (folder / "provisioning_parameters.json").write_text(json.dumps(parameters))
    return str(tmp_path)


def test_the_files_of_hyperpod_tell_all(tmp_path: Path) -> None:
    place = find(environ={}, sysroot=host(tmp_path, parameters={"workload_manager": "slurm"}))
    assert (place.cluster, place.arn, place.region) == ("training", ARN, "us-west-2")
    assert (place.account, place.manager, place.hyperpod) == ("123456789012", "slurm", True)
    assert place.log_group == "/aws/sagemaker/Clusters/training/abcdef012345"
    assert place.members == (Member("i-0123456789abcdef0", "10.0.0.1", "workers"),)


def test_another_path_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.json"
    path.write_text(json.dumps(CONFIG))
    assert find(environ={"SAGEMAKER_RESOURCE_CONFIG_PATH": str(path)}).cluster == "training"


@pytest.mark.parametrize(
    ("given_", "cluster", "region"),
    [
        ({}, "training", "us-west-2"),
        ({"region": "eu-west-1"}, "training", "eu-west-1"),
        ({"region": "eu-west-1", "environ": {"AWS_REGION": "us-east-1"}}, "training", "eu-west-1"),
        ({"environ": {"AWS_REGION": "us-east-1"}}, "training", "us-west-2"),
        ({"cluster": "other", "environ": {"AWS_REGION": "us-east-1"}}, "other", "us-east-1"),
        ({"cluster": "other", "environ": {"AWS_DEFAULT_REGION": "us-east-2"}}, "other", "us-east-2"),
        ({"cluster": "other", "environ": {"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}}, "other", "us-west-2"),
        ({"cluster": "other"}, "other", "us-west-2"),
        ({"cluster": ARN.replace("us-west-2", "eu-west-1")}, None, "eu-west-1"),
        ({"configured": ("third", "eu-west-1")}, "training", "us-west-2"),
        ({"cluster": ARN, "configured": ("third", "eu-west-1")}, None, "us-west-2"),
        ({"cluster": "no;name", "region": "no region"}, "training", "us-west-2"),
    ],
)
def test_who_comes_before_whom(tmp_path: Path, given_: dict[str, Any], cluster: str | None, region: str) -> None:
    place = find(**{"environ": {}, **given_}, sysroot=host(tmp_path))
    assert (place.cluster, place.region) == (cluster, region)


@pytest.mark.parametrize(
    ("given_", "unused", "region"),
    [
        ({"environ": {"AWS_REGION": "us_west"}}, "AWS_REGION us_west: no AWS region", "us-west-2"),
        ({"environ": {"AWS_DEFAULT_REGION": "us_west"}}, "AWS_DEFAULT_REGION us_west: no AWS region", "us-west-2"),
        ({"environ": {"AWS_REGION": "eusc-de-east-1"}}, "", "eusc-de-east-1"),
        ({"environ": {"AWS_REGION": "us_west"}, "region": "eu-west-1"}, "", "eu-west-1"),  # it does not count
        ({"environ": {"AWS_REGION": "us_west"}, "cluster": ARN}, "", "us-west-2"),
        ({"environ": {}}, "", "us-west-2"),
    ],
)
def test_a_region_that_is_none_is_told(tmp_path: Path, given_: dict[str, Any], unused: str, region: str) -> None:
    place = find(**given_, configured=("training", "us-west-2"), sysroot=str(tmp_path))
    assert place.unused.startswith(unused) and bool(place.unused) == bool(unused)
    assert place.region == region


def test_another_cluster_is_not_given_this_ones_arn(tmp_path: Path) -> None:
    assert find(cluster="other", environ={}, sysroot=host(tmp_path)).arn is None
    assert find(cluster="training", environ={}, sysroot=host(tmp_path / "again")).arn == ARN


def test_the_settings_tell_where_no_file_does(tmp_path: Path) -> None:
    place = find(configured=("training", "eu-west-1"), environ={}, sysroot=str(tmp_path))
    assert (place.cluster, place.region, place.hyperpod) == ("training", "eu-west-1", True)
    assert place.members is None and "No such file" in place.unread
    place = find(configured=("training", "eu-west-1"), environ={"AWS_REGION": "us-east-1"}, sysroot=str(tmp_path))
    assert place.region == "us-east-1"


def test_no_mark_of_hyperpod(tmp_path: Path) -> None:
    place = find(environ={"AWS_REGION": "eu-west-1"}, sysroot=str(tmp_path))
    assert (place.cluster, place.hyperpod) == (None, False)
    (tmp_path / "opt/sagemaker_cluster").mkdir(parents=True)
    assert find(environ={}, sysroot=str(tmp_path)).hyperpod


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"ClusterConfig": 7}', '{"InstanceGroups": {"a": 1}}', "[" * 9000]
)
def test_a_damaged_file_tells_nothing(tmp_path: Path, text: str) -> None:
    root = host(tmp_path)
    (tmp_path / "opt/ml/config/resource_config.json").write_text(text)
    place = find(environ={}, sysroot=root)
    assert (place.cluster, place.arn, place.region) == (None, None, None)
    assert not place.members


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["InstanceGroups", "Instances", "InstanceId", "Name", "x"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["InstanceGroups", "ClusterConfig"]), _JSON))
def test_members_of_anything(tree: dict[str, Any]) -> None:
    assert all(isinstance(one, Member) for one in read_members(tree))
