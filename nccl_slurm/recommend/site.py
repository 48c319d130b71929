"""What the guards have to know of the cluster now. All of it is handed in; what is empty was not observed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_slurm.history.reasons import Reasons, packaged

__all__ = ["INSTANCE", "KINDS", "NodeNow", "Running", "Site", "kind_of", "short"]

KINDS = ("hyperpod", "slurm")
#: Instance ids of EC2 (botocore 1.43.11: 8 hexadecimal digits, 9 more in newer ones).
INSTANCE = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?\Z")


#: An address has no domain behind its first dot.
_ADDRESS = re.compile(r"[0-9.]+\Z|.*:")


@dataclass(frozen=True)
class NodeNow:
    """A node as Slurm shows it now: ``state`` with its flags (``IDLE+DRAIN+REBOOT_REQUESTED``), None: not observed.
    ``hosts``: host name and address that Slurm has for it beside its name. ``switch``: the one it hangs on."""

    state: str | None = None
    reason: str | None = None
    switch: str | None = None
    booted: float | None = None
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Running:
    """A job that runs on a node now. ``nodes``: how many it has."""

    job: str
    user: str | None = None
    nodes: int | None = None


@dataclass(frozen=True)
class Site:
    """``controllers``: primary first, then backups, as ``scontrol ping`` and slurm.conf name them. ``now`` by node.
    ``databases``, ``logins``: hosts as well. ``jobs`` by node; a node that is missing there was not asked. ``open``:
    node → reboot | replace, recommended and neither carried out nor declined. ``suspects``: node → why, of statistics
    over jobs: a look at most. ``nodes``: size of the fleet. ``aws_cluster``, ``region``: HyperPod's. ``reboots``:
    whether Slurm can reboot nodes (slurm.conf has a RebootProgram), None: not told. ``reasons``: by which reasons of
    nodes are told.
    """

    kind: str = ""
    aws_cluster: str = ""
    region: str = ""
    controllers: Sequence[str] = ()
    logins: Sequence[str] = ()
    databases: Sequence[str] = ()
    now: Mapping[str, NodeNow] = field(default_factory=dict)
    jobs: Mapping[str, Sequence[Running]] = field(default_factory=dict)
    open: Mapping[str, str] = field(default_factory=dict)
    suspects: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None
    reboots: bool | None = None
    reasons: Reasons = field(default_factory=packaged)


def short(host: str) -> str:
    """The name without its domain; an address as it is."""
    return host if _ADDRESS.match(host) else host.partition(".")[0].lower()


def kind_of(configured: str, records: Iterable[Mapping[str, Any]]) -> str:
    """``[site] kind`` where it is set; else HyperPod where a node's record shows its files (/opt/ml/config): an
    instance id alone is any EC2 machine's."""
    if configured:
        return configured
    told = (record["machine"]["role"]["node_type"] for record in records)
    return "hyperpod" if any(told) else "slurm"
