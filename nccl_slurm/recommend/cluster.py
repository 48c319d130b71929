"""How AWS names a HyperPod cluster: its name, its ARN, its region. Pure."""

from __future__ import annotations

import re

__all__ = ["CLUSTER", "REGION", "of_arn", "wrong"]

#: CreateCluster's ClusterName (botocore's model of SageMaker).
CLUSTER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,126}[A-Za-z0-9])?\Z")
#: us-west-2, us-gov-west-1, us-isob-east-1, eusc-de-east-1 (botocore's endpoints).
REGION = re.compile(r"[a-z]{2,5}(?:-[a-z]{1,12}){1,3}-\d{1,2}\Z")
#: ``arn:aws:sagemaker:us-west-2:123456789012:cluster/abc123``; other partitions too.
_ARN = re.compile(r"arn:[a-z0-9-]{1,20}:sagemaker:([a-z0-9-]{1,40}):([0-9]{12}):cluster/([a-z0-9]{1,40})\Z")


def of_arn(arn: str | None) -> tuple[str, str, str] | None:
    """(region, account, id) of a cluster's ARN."""
    found = _ARN.match(arn or "")
    return (found[1], found[2], found[3]) if found else None


def wrong(cluster: str, region: str, names: tuple[str, str] = ("--cluster", "--region")) -> str:
    """What of the two is none, and what it should look like; empty where both may be. ``names``: of whom they are."""
    told = of_arn(cluster)
    if cluster and not (CLUSTER.match(cluster) or told):
        why = "no name of a HyperPod cluster (letters, digits, -) and no ARN of one"
        return f"{names[0]} {cluster}: {why}; aws sagemaker list-clusters tells both"
    if region and not REGION.match(region):
        return f"{names[1]} {region}: no AWS region; they look like us-west-2"
    return f"{names[1]} {region}: the ARN is of {told[0]}" if told and region and region != told[0] else ""
