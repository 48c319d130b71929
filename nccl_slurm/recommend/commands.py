"""Exact commands for a person. Nothing here is ever run by this software.

HyperPod acts on two reasons and no other: ``Action:Reboot`` and ``Action:Replace``, with state ``fail``, which lets
running jobs end first (AWS's Slurm skill). Its batch calls take 25 ids at most (API model, botocore 1.43.11).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nccl_slurm.recommend.cluster import CLUSTER, REGION, of_arn
from nccl_slurm.recommend.site import INSTANCE, Site

__all__ = ["BATCH_MAX", "NODE_NAME", "batch", "commands"]

BATCH_MAX = 25
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")

_VERB = {"reboot": "batch-reboot-cluster-nodes", "replace": "batch-replace-cluster-nodes"}
_IN_PLACE = "  # in place of the line above, not after it"


def commands(action: str, name: str, reason: str, site: Site, identity: str | None) -> tuple[str, ...]:
    """What to look at, whom it hits, what to do. ``reason`` is ours, without quotes; ``name`` fits `NODE_NAME`.

    ``identity``: the machine's, for HyperPod's batch call. ``ASAP`` drains first and lets jobs end (scontrol(1)).
    """
    look = f"scontrol show node {name}"
    if action not in _VERB:
        return (look,)
    hit = f'squeue --nodelist={name} --states=RUNNING,SUSPENDED,COMPLETING --format="%i %u %D %j"'
    if site.kind == "hyperpod":
        asked = f'sudo scontrol update node={name} state=fail reason="Action:{action.capitalize()}"'
        calls = batch(action, [identity] if identity else [], site)
        return (look, hit, asked, *(call + _IN_PLACE for call in calls))
    if action == "reboot" and site.reboots is False:
        by_hand = "  # slurm.conf has no RebootProgram: reboot it by hand once its jobs ended, then set it to resume"
        return (look, hit, f'scontrol update nodename={name} state=drain reason="{reason}, reboot"{by_hand}')
    if action == "reboot":
        return (look, hit, f'scontrol reboot ASAP nextstate=RESUME reason="{reason}" {name}')
    return (look, hit, f'scontrol update nodename={name} state=drain reason="{reason}, replace"')


def batch(action: str, identities: Sequence[str], site: Site) -> tuple[str, ...]:
    """HyperPod's API calls for all of them; identities that are no instance id are left out.

    ``CLUSTER`` and ``REGION`` stand where the settings don't tell them.
    """
    ids = [one for one in dict.fromkeys(identities) if INSTANCE.match(one)]
    told = of_arn(site.aws_cluster)
    cluster = site.aws_cluster if told or CLUSTER.match(site.aws_cluster) else "CLUSTER"
    region = told[0] if told else site.region if REGION.match(site.region) else "REGION"
    head = f"aws sagemaker {_VERB[action]} --cluster-name {cluster} --region {region} --node-ids"
    return tuple(f"{head} {' '.join(ids[at : at + BATCH_MAX])}" for at in range(0, len(ids), BATCH_MAX))
