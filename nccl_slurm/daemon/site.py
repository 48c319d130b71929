"""What Slurm and the settings tell of the cluster now → `recommend.site.Site`, which the guards ask. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nccl_slurm.config import Config
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.recommend.site import NodeNow, Running, Site, kind_of
from nccl_slurm.scheduler.client import LiveJob, NodeState

__all__ = ["site"]

#: States in which a job has its nodes.
_THERE = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT")


def site(
    config: Config,
    controllers: Sequence[str],
    nodes: Iterable[NodeState] | None,
    jobs: Iterable[LiveJob] | None,
    records: Sequence[RecordRow] = (),
    open_: Mapping[str, str] | None = None,
) -> Site:
    """``nodes`` of the newest poll, ``jobs`` of the newest squeue; None: not asked, and then nothing is said of them.

    ``controllers``: primary first. ``open_``: node → reboot | replace that was recommended and not carried out.
    """
    polled = None if nodes is None else {node.name: node for node in nodes}
    now = {name: NodeNow(n.full_state, n.reason, booted=n.boot_time) for name, n in (polled or {}).items()}
    return Site(
        kind=kind_of(config.site.kind, (row.record for row in records)),
        aws_cluster=config.site.aws_cluster,
        region=config.site.region,
        controllers=controllers,
        now=now,
        jobs={} if jobs is None else _jobs(now, jobs),
        open=open_ or {},
        nodes=None if polled is None else len(polled),
    )


def _jobs(known: Iterable[str], jobs: Iterable[LiveJob]) -> dict[str, list[Running]]:
    """By node; a known node without a job has an empty list: it was asked, and nothing runs there."""
    found: dict[str, list[Running]] = {name: [] for name in known}
    for job in jobs:
        if job.state in _THERE:
            for name in job.nodes:
                found.setdefault(name, []).append(Running(job.id, job.user, len(job.nodes)))
    return found
