"""What the doctor's commands have to know of the site: HyperPod or plain Slurm, its names, whether Slurm can reboot.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_slurm import config
from nccl_slurm.doctor.aws.place import Place
from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.recommend.site import NodeNow, Site
from nccl_slurm.scheduler.client import NodeState, Settings

__all__ = ["SOURCES", "is_hyperpod", "site_of"]

#: What is asked of each node for it, whatever the checks are.
SOURCES = frozenset({"hyperpod-folder"})


def is_hyperpod(seen: Observation) -> bool:
    """Whether the node has HyperPod's folder; not observed is no."""
    try:
        return bool(seen.present("hyperpod-folder"))
    except NotObserved:
        return False


def site_of(
    settings: Settings,
    own: config.Site,
    place: Place,
    controllers: Sequence[str],
    *,
    hyperpod: bool = False,
    nodes: Iterable[NodeState] = (),
    reasons: Reasons | None = None,
) -> Site:
    """``own``: of nccl-slurm.toml, whose word on the kind counts first. ``place``: what options and this host tell.
    ``hyperpod``: what a node told. ``nodes``: as Slurm shows them now. ``reasons``: the site's; None: ours alone."""
    kind = own.kind or ("hyperpod" if hyperpod or place.hyperpod else "slurm")
    return Site(
        kind,
        place.cluster or place.arn or own.aws_cluster,
        place.region or own.region,
        controllers,
        own.login_nodes,
        settings.database_hosts,
        now={node.name: NodeNow(node.full_state, node.reason) for node in nodes},
        reboots=settings.reboots,
        reasons=reasons or packaged(),
    )
