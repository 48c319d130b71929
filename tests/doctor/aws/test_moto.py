"""Against moto's own SageMaker and CloudWatch Logs, so that not only our endpoint says what the replies are."""

from __future__ import annotations

import time

import boto3
import pytest

from nccl_slurm.doctor.aws.client import Client
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.place import Place
from tests.doctor.aws.endpoint import Endpoint
from tests.doctor.aws.world import LIMITS, instance, look, said

REGION = "us-west-2"


@pytest.fixture
def made(joined: Endpoint) -> Place:
    """A cluster of 60 instances. (moto 5.2 gives the first page of a longer list again and again.)"""
    sagemaker = boto3.client("sagemaker", region_name=REGION)
    name = f"training{time.monotonic_ns()}"
    life = {"SourceS3Uri": "s3://sagemaker-x", "OnCreate": "on_create.sh"}
    groups = [
        {
            "InstanceGroupName": "workers",
            "InstanceType": "ml.p4d.24xlarge",
            "InstanceCount": 60,
            "LifeCycleConfig": life,
            "ThreadsPerCore": 1,
            "ExecutionRole": "arn:aws:iam::123456789012:role/SageMakerRole",
        }
    ]
    arn = sagemaker.create_cluster(ClusterName=name, InstanceGroups=groups)["ClusterArn"]
    joined.calls.clear()
    return Place(cluster=name, arn=arn, region=REGION, hyperpod=True)


def observed(place: Place, since: float, until: float) -> Aws:
    return Aws(place, Client(REGION, LIMITS), since, until)


def test_the_cluster_and_all_its_instances(joined: Endpoint, made: Place) -> None:
    aws = observed(Place(cluster=made.cluster, region=REGION, hyperpod=True), 0.0, time.time())
    assert said(look("aws.cluster-status", aws)) == [("PASS", None)]
    assert len(aws.instances().items) == 60
    assert set(said(look("aws.node-status", aws))) == {("PASS", None)}
    assert said(look("aws.node-recovery", aws))[0][0] in ("UNKNOWN", "PASS", "WARN")


def test_a_cluster_that_is_not_there_is_unknown(joined: Endpoint) -> None:
    aws = observed(Place(cluster="absent", region=REGION, hyperpod=True), 0.0, 1.0)
    assert said(look("aws.cluster-status", aws)) == [("UNKNOWN", None)]


def test_streams_of_other_writers_are_not_read(joined: Endpoint) -> None:
    logs = boto3.client("logs", region_name=REGION)
    place = Place("training", "arn:aws:sagemaker:us-west-2:123456789012:cluster/moto", REGION, hyperpod=True)
    assert place.log_group is not None
    logs.create_log_group(logGroupName=place.log_group)
    now = time.time()
    bad = '{"level": "error", "msg": "Encountered FaultyInstance"}'
    streams = {f"DeepHealthCheckResults/{instance(1)}": "all done", f"LifecycleConfig/workers/{instance(1)}": bad}
    for stream, message in streams.items():
        logs.create_log_stream(logGroupName=place.log_group, logStreamName=stream)
        told = [{"timestamp": int(now * 1000), "message": message}]
        logs.put_log_events(logGroupName=place.log_group, logStreamName=stream, logEvents=told)
    assert said(look("aws.deep-check", observed(place, now - 60, now + 60))) == [("PASS", None)]
    assert said(look("aws.deep-check", observed(place, now + 60, now + 90))) == [("NOT-APPLICABLE", None)]
