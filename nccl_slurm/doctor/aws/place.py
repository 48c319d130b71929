"""Which HyperPod cluster, in which region: by option, environment, nccl-slurm.toml, or what HyperPod left on this host.

``/opt/ml/config/resource_config.json`` (or where SAGEMAKER_RESOURCE_CONFIG_PATH says) is readable by root; its fields
and those of provisioning_parameters.json are as AWS's lifecycle scripts read them (awsome-distributed-training,
1.architectures/5.sagemaker-hyperpod). Reading never raises on what it finds there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.recommend.site import INSTANCE

__all__ = ["Member", "Place", "find", "of_arn", "read_members", "wrong"]

#: ``arn:aws:sagemaker:us-west-2:123456789012:cluster/abc123``; other partitions too.
_ARN = re.compile(r"arn:[a-z0-9-]{1,20}:sagemaker:([a-z0-9-]{1,40}):([0-9]{12}):cluster/([a-z0-9]{1,40})\Z")
_REGION = re.compile(r"[a-z0-9]{1,10}(?:-[a-z0-9]{1,20}){1,4}\Z")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,126}[A-Za-z0-9])?\Z")
_BYTES_MAX = 64 * 1024 * 1024
_FOLDER = "/opt/ml/config"


@dataclass(frozen=True)
class Member:
    """An instance as resource_config.json has it: the file of a node is as old as that node."""

    instance: str
    address: str | None
    group: str | None


@dataclass(frozen=True)
class Place:
    """``members`` None: resource_config.json was not read, ``unread`` says why. ``sources``: what told each part.
    ``hyperpod``: whether this host has the marks of a HyperPod instance, or somebody named a cluster."""

    cluster: str | None = None
    arn: str | None = None
    region: str | None = None
    members: Sequence[Member] | None = None
    unread: str = ""
    manager: str | None = None
    hyperpod: bool = False
    sources: Sequence[str] = ()

    @property
    def account(self) -> str | None:
        return found[1] if (found := of_arn(self.arn)) else None

    @property
    def log_group(self) -> str | None:
        found = of_arn(self.arn)
        return f"/aws/sagemaker/Clusters/{self.cluster}/{found[2]}" if found and self.cluster else None


def wrong(cluster: str, region: str) -> str:
    """What of the two options is none; empty where both may be. AWS's forms: CreateCluster's ClusterName, an ARN."""
    if cluster and not (_NAME.match(cluster) or of_arn(cluster)):
        return f"--cluster {cluster}: no name of a HyperPod cluster (letters, digits, -) and no ARN of one"
    if region and not _REGION.match(region):
        return f"--region {region}: no AWS region; they look like us-west-2"
    told = of_arn(cluster)
    return f"--region {region}: the ARN is of {told[0]}" if told and region and region != told[0] else ""


def of_arn(arn: str | None) -> tuple[str, str, str] | None:
    """(region, account, id) of a cluster's ARN."""
    found = _ARN.match(arn or "")
    return (found[1], found[2], found[3]) if found else None


def find(
    *,
    cluster: str = "",
    region: str = "",
    configured: tuple[str, str] = ("", ""),
    environ: Mapping[str, str] | None = None,
    sysroot: str = "",
) -> Place:
    """``cluster`` (a name, or an ARN) and ``region``: options. ``configured``: nccl-slurm.toml's ``site.aws_cluster``
    and ``site.region``. The first that tells a part counts; a cluster's ARN tells its region, whatever the environment
    says. ``sysroot`` stands before the files' paths in tests."""
    environ = os.environ if environ is None else environ
    place = _of_files(environ, sysroot)
    named = (("option", cluster, region), ("nccl-slurm.toml", *configured))
    for source, name, where in named:
        place = _with(place, source, name, where)
    where = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    return _with(place, "environment", "", where) if not region and place.arn is None else place


def _with(place: Place, source: str, cluster: str, region: str) -> Place:
    """Options come first, and take the place of what files told; each later source only fills what is empty."""
    first = source == "option"
    told = of_arn(cluster)
    if told and (first or not place.arn):
        place = replace(place, arn=cluster, cluster=None, hyperpod=True)
        place = replace(place, region=told[0], sources=(*place.sources, f"ARN by {source}"))
    elif _NAME.match(cluster) and (first or not place.cluster):
        arn = place.arn if place.cluster == cluster else None
        place = replace(place, cluster=cluster, arn=arn, hyperpod=True)
        place = replace(place, sources=(*place.sources, f"cluster by {source}"))
    if _REGION.match(region) and (first or source == "environment" or not place.region):
        place = replace(place, region=region, sources=(*place.sources, f"region by {source}"))
    return place


def _of_files(environ: Mapping[str, str], sysroot: str) -> Place:
    path = environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH") or f"{_FOLDER}/resource_config.json"
    tree, why = _tree(sysroot + path)
    parameters, _ = _tree(f"{sysroot}{_FOLDER}/provisioning_parameters.json")
    told = _mapping(tree.get("ClusterConfig"))
    arn, cluster = _text(told.get("ClusterArn")), _text(told.get("ClusterName"))
    found = of_arn(arn)
    marks = bool(cluster or found) or os.path.isdir(f"{sysroot}/opt/sagemaker_cluster")
    return Place(
        cluster=cluster if cluster and _NAME.match(cluster) else None,
        arn=arn if found else None,
        region=found[0] if found else None,
        members=None if why else tuple(read_members(tree)),
        unread=why,
        manager=_text(parameters.get("workload_manager")),
        hyperpod=marks,
        sources=(path,) if not why else (),
    )


def read_members(tree: Mapping[str, Any]) -> Iterator[Member]:
    """Instances with an id that is one; others can't be named to anybody."""
    for group in _list(tree.get("InstanceGroups")):
        for one in _list(_mapping(group).get("Instances")):
            instance = (_text(_mapping(one).get("InstanceId")) or "").lower()
            if INSTANCE.match(instance):
                yield Member(
                    instance, _text(_mapping(one).get("CustomerIpAddress")), _text(_mapping(group).get("Name"))
                )


def _tree(path: str) -> tuple[dict[str, Any], str]:
    """The object of a JSON file, or why there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.loads(file.read(_BYTES_MAX))
    except OSError as error:
        return {}, f"{path}: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path}: no JSON"
    return (value, "") if isinstance(value, dict) else ({}, f"{path}: no JSON object")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
