"""What the scheduler's checks are given: the words of Slurm's commands, and what its nodes have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.observation import Fleet
from nccl_slurm.doctor.read.scontrol import node_fields, partition_fields
from nccl_slurm.history.reasons import Reasons, packaged
from nccl_slurm.install.slurmconf import SlurmConfig, parse_config, values
from nccl_slurm.scheduler import text
from nccl_slurm.scheduler.client import Controller, NodeState

__all__ = ["Plugin", "SlurmObserved"]


class Plugin(NamedTuple):
    """``path`` is absolute."""

    required: bool
    path: str


@dataclass(frozen=True)
class SlurmObserved:
    """``texts``: ping, config, nodes, partitions, queue, slurmdbd, munge, own-daemon → what was printed, or why not;
    slurm.conf: the file, as this host has it. ``conf``: its path, empty where there is none.

    ``fleet``: the nodes that were looked at; ``chosen``: whom node states are asked of, empty for all. ``credentials``:
    node → what ``unmunge`` here says of its credential. ``here``: programs of slurmctld, as this host has them:
    ``octal-mode uid``, or empty: it is not there. ``on_controller``: whether this host is one. ``plugins``: SPANK's, of
    plugstack.conf as this host has it. ``found_here``: pattern of Prolog or Epilog → what it finds on this host, links
    followed too. ``own_hooks``: the folder of nccl-slurm's hooks by capture.conf, empty where none tells.
    ``reasons``: by which reasons of nodes are told. ``by_look``: nodes that went out of work since a job of this look
    began there → the reason's row, empty where it may have another cause.
    """

    now: float
    texts: Mapping[str, str | NotObserved]
    fleet: Fleet = field(default_factory=lambda: Fleet({}))
    chosen: frozenset[str] = frozenset()
    credentials: Mapping[str, str] = field(default_factory=dict)
    here: Mapping[str, str] = field(default_factory=dict)
    on_controller: bool = False
    plugins: Sequence[Plugin] = ()
    found_here: Mapping[str, Sequence[str]] = field(default_factory=dict)
    own_hooks: str = ""
    reasons: Reasons = field(default_factory=packaged)
    conf: str = ""
    by_look: Mapping[str, str] = field(default_factory=dict)

    def said(self, key: str) -> str:
        told = self.texts.get(key)
        if told is None:
            raise NotObserved(f"{key}: was not asked")
        if isinstance(told, NotObserved):
            raise told
        return told

    def unseen(self, what: str) -> str:
        """Why nothing is known of what nodes have: no node was chosen, or none of them answered."""
        if self.fleet.silent:
            return f"{what} can't be seen: no node that was chosen gave an observation"
        return f"{what} are seen where nodes are looked at: --nodes or --job"

    @cached_property
    def settings(self) -> Mapping[str, Sequence[str]]:
        """Key of ``scontrol show config`` → its values; a key without a value is absent."""
        found = values(self.said("config"))
        if not found:
            raise NotObserved("scontrol show config: no setting in its answer")
        return found

    @cached_property
    def config(self) -> SlurmConfig:
        """Raises NotObserved where the answer has no setting at all: that none of them has a value is no answer."""
        return parse_config(self.said("config")) if self.settings else SlurmConfig()

    def setting(self, key: str) -> str:
        """Empty where it has no value. Slurm prints all keys that it knows, so that is an answer."""
        return (list(self.settings.get(key, ())) or [""])[0]

    def controllers(self) -> Sequence[Controller]:
        found = text.read_controllers(self.said("ping"))
        if not found:
            raise NotObserved("scontrol ping: names no controller")
        return found

    @cached_property
    def nodes(self) -> Sequence[NodeState]:
        return text.read_nodes(self.said("nodes"))

    @cached_property
    def fields(self) -> Mapping[str, Mapping[str, str]]:
        """Node → its fields."""
        return node_fields(self.said("nodes"))

    @cached_property
    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        return partition_fields(self.said("partitions"))
