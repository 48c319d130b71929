"""Which HyperPod cluster, in which region: by option, what HyperPod left on this host, environment, or nccl-slurm.toml.

``/opt/ml/config/resource_config.json`` (or where SAGEMAKER_RESOURCE_CONFIG_PATH says) is readable by root; its fields
and those of provisioning_parameters.json are as AWS's lifecycle scripts read them (awsome-distributed-training,
1.architectures/5.sagemaker-hyperpod). Reading never raises on what it finds there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nccl_slurm.recommend.cluster import CLUSTER, REGION, of_arn
from nccl_slurm.recommend.site import INSTANCE

__all__ = ["Member", "Place", "find", "read_members"]

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
    ``hyperpod``: whether this host has the marks of a HyperPod instance, or somebody named a cluster. ``unused``: what
    was given and is no region, in words."""

    cluster: str | None = None
    arn: str | None = None
    region: str | None = None
    members: Sequence[Member] | None = None
    unread: str = ""
    manager: str | None = None
    hyperpod: bool = False
    sources: Sequence[str] = ()
    unused: str = ""

    @property
    def account(self) -> str | None:
        return found[1] if (found := of_arn(self.arn)) else None

    @property
    def log_group(self) -> str | None:
        found = of_arn(self.arn)
        return f"/aws/sagemaker/Clusters/{self.cluster}/{found[2]}" if found and self.cluster else None


def find(
    *,
    cluster: str = "",
    region: str = "",
    configured: tuple[str, str] = ("", ""),
    environ: Mapping[str, str] | None = None,
    sysroot: str = "",
) -> Place:
    """``cluster`` (a name, or an ARN) and ``region``: options. ``configured``: nccl-slurm.toml's ``site.aws_cluster``
    and ``site.region``. Options count before what files tell, that before the settings; a cluster's ARN tells its
    region, whatever the environment says, and the environment's counts before the settings'. ``sysroot`` stands before
    the files' paths in tests."""
    environ = os.environ if environ is None else environ
    place = _of_files(environ, sysroot)
    named = (("option", cluster, region), ("nccl-slurm.toml", *configured))
    for source, name, where in named:
        place = _with(place, source, name, where)
    name = next((one for one in ("AWS_REGION", "AWS_DEFAULT_REGION") if environ.get(one)), "")
    if not name or region or place.arn is not None:
        return place
    where = environ[name]
    if not REGION.match(where):
        return replace(
            place, unused=f"{name} {where}: no AWS region, and not used; set one like us-west-2, or unset it"
        )
    return _with(place, "environment", "", where)


def _with(place: Place, source: str, cluster: str, region: str) -> Place:
    """Options come first, and take the place of what files told; each later source only fills what is empty."""
    first = source == "option"
    told = of_arn(cluster)
    if told and (first or not place.arn):
        place = replace(place, arn=cluster, cluster=None, hyperpod=True)
        place = replace(place, region=told[0], sources=(*place.sources, f"ARN by {source}"))
    elif CLUSTER.match(cluster) and (first or not (place.cluster or place.arn)):
        arn = place.arn if place.cluster == cluster else None
        place = replace(place, cluster=cluster, arn=arn, hyperpod=True)
        place = replace(place, sources=(*place.sources, f"cluster by {source}"))
    if REGION.match(region) and (first or source == "environment" or not place.region):
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
        cluster=cluster if cluster and CLUSTER.match(cluster) else None,
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
