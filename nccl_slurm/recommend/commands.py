"""Exact commands for a person. Nothing here is ever run by this software.

HyperPod acts on two reasons and no other: ``Action:Reboot`` and ``Action:Replace``, with state ``fail``, which lets
running jobs end first (AWS's Slurm skill). Its batch calls take 25 ids at most (API model, botocore 1.43.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_slurm.history.reasons import Reasons
from nccl_slurm.recommend.cluster import CLUSTER, REGION, of_arn
from nccl_slurm.recommend.site import INSTANCE, NodeNow, Site

__all__ = ["BATCH_MAX", "NODE_NAME", "as_it_stands", "batch", "commands"]

BATCH_MAX = 25
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")

#: Whose drains a reboot is meant to end: what Slurm itself found is mended by it, or found again.
_OWN = ("nccl-slurm", "slurm")
_VERB = {"reboot": "batch-reboot-cluster-nodes", "replace": "batch-replace-cluster-nodes"}
_IN_PLACE = "  # in place of the line above, not after it"
_REBOOT = "scontrol reboot ASAP nextstate="
_UNHEARD = "  # slurmd does not answer, so Slurm can't reach it: reboot it by console, BMC or cloud instead"
_STAYS_OUT = "  # another took the node out: it stays down after the boot until somebody resumes it"


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
        return (look, hit, f'{_REBOOT}RESUME reason="{reason}" {name}')
    return (look, hit, f'scontrol update nodename={name} state=drain reason="{reason}, replace"')


def as_it_stands(lines: Iterable[str], node: NodeNow, reasons: Reasons) -> tuple[str, ...]:
    """The same for a node in this state. ``nextstate=RESUME`` ends a drain whoever set it, and with it the reason; a
    reboot that Slurm can't deliver looks after ResumeTimeout like one that did not help (both seen on 22.05)."""
    return tuple(_as_it_stands(line, node, reasons) if _is_bare_reboot(line) else line for line in lines)


def _is_bare_reboot(line: str) -> bool:
    return line.startswith(_REBOOT) and "  # " not in line


def _as_it_stands(line: str, node: NodeNow, reasons: Reasons) -> str:
    words = _words(node.state)
    others = words & {"DRAIN", "DOWN", "FAIL"} and node.reason and reasons.classify(node.reason).owner not in _OWN
    if others:
        line = line.replace("nextstate=RESUME", "nextstate=DOWN", 1)
    if "NOT_RESPONDING" in words:
        return line + _UNHEARD
    return line + _STAYS_OUT if others else line


def _words(state: str | None) -> set[str]:
    return set(re.split(r"[+,\s]+", (state or "").upper()))


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
