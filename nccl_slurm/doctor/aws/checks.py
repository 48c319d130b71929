"""The AWS checks, in the order in which one explains the next, and what they look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_slurm.config import Config
from nccl_slurm.doctor.aws.account import CREDENTIALS, ORCHESTRATOR
from nccl_slurm.doctor.aws.client import Client
from nccl_slurm.doctor.aws.events import EVENTS
from nccl_slurm.doctor.aws.health import DEEP_CHECK, HEALTH_AGENT
from nccl_slurm.doctor.aws.instances import NamedNode
from nccl_slurm.doctor.aws.nodes import INSTANCE_MAP, NODE_STATUS
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.place import find
from nccl_slurm.doctor.aws.security import SECURITY_GROUP
from nccl_slurm.doctor.aws.shape import AwsCheck
from nccl_slurm.doctor.aws.status import CAPACITY, CLUSTER_STATUS, NODE_RECOVERY

__all__ = ["checks", "observe"]


def checks() -> tuple[AwsCheck, ...]:
    return (
        CREDENTIALS,
        ORCHESTRATOR,
        CLUSTER_STATUS,
        NODE_RECOVERY,
        CAPACITY,
        NODE_STATUS,
        INSTANCE_MAP,
        EVENTS,
        HEALTH_AGENT,
        DEEP_CHECK,
        SECURITY_GROUP,
    )


def observe(
    config: Config,
    *,
    since: float,
    until: float,
    nodes: Sequence[NamedNode] = (),
    slurm: bool | None = None,
    by_choice: bool = True,
    cluster: str = "",
    region: str = "",
    environ: Mapping[str, str] | None = None,
) -> Aws:
    """Asks nobody yet. ``cluster``, ``region``: options of the command line; ``nodes``: those chosen, else all."""
    configured = (config.site.aws_cluster, config.site.region)
    place = find(cluster=cluster, region=region, configured=configured, environ=environ)
    return Aws(place, Client(place.region), since, until, nodes, slurm, by_choice)
