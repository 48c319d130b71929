"""What Slurm and the settings tell of the cluster now → `recommend.site.Site`, which the guards ask. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nccl_slurm.config import Config
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.recommend.site import NodeNow, Running, Site, kind_of
from nccl_slurm.scheduler.client import LiveJob, NodeState

__all__ = ["Layout", "site"]

#: States in which a job has its nodes.
_THERE = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT")


@dataclass
class Layout:
    """What seldom changes, kept up to date by the loop. ``databases``: hosts of slurmdbd and its database.
    ``switches``: the one that each node hangs on, where Slurm has a topology. ``reboots``: whether it can reboot nodes,
    None: not told."""

    databases: Sequence[str] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    reboots: bool | None = None


def site(
    config: Config,
    controllers: Sequence[str],
    nodes: Iterable[NodeState] | None,
    jobs: Iterable[LiveJob] | None,
    records: Sequence[RecordRow] = (),
    open_: Mapping[str, str] | None = None,
    layout: Layout | None = None,
    reasons: Reasons | None = None,
) -> Site:
    """``nodes`` of the newest poll, ``jobs`` of the newest squeue; None: not asked, and then nothing is said of them.

    ``controllers``: primary first. ``open_``: node → reboot | replace that was recommended and not carried out.
    ``reasons``: the store's.
    """
    polled = None if nodes is None else {node.name: node for node in nodes}
    layout = layout or Layout()
    now = {name: _now(node, layout.switches.get(name)) for name, node in (polled or {}).items()}
    return Site(
        kind=kind_of(config.site.kind, (row.record for row in records)),
        aws_cluster=config.site.aws_cluster,
        region=config.site.region,
        controllers=controllers,
        databases=[*layout.databases, *config.site.database_hosts],
        logins=config.site.login_nodes,
        now=now,
        jobs={} if jobs is None else _jobs(now, jobs),
        open=open_ or {},
        nodes=None if polled is None else len(polled),
        reboots=layout.reboots,
        reasons=reasons or packaged(),
    )


def _now(node: NodeState, switch: str | None) -> NodeNow:
    hosts = tuple(dict.fromkeys(host for host in (node.hostname, node.address) if host))
    return NodeNow(node.full_state, node.reason, switch, node.boot_time, hosts)


def _jobs(known: Iterable[str], jobs: Iterable[LiveJob]) -> dict[str, list[Running]]:
    """By node; a known node without a job has an empty list: it was asked, and nothing runs there."""
    found: dict[str, list[Running]] = {name: [] for name in known}
    for job in jobs:
        if job.state in _THERE:
            for name in job.nodes:
                found.setdefault(name, []).append(Running(job.id, job.user, len(job.nodes)))
    return found
