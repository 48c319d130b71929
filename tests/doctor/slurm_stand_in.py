"""Slurm's commands as scripts in a folder: what they print lies in files beside them; srun runs its program here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["StandIn"]

_CONFIG = """AccountingStorageType = accounting_storage/slurmdbd
AccountingStoreFlags = job_comment
AuthType = auth/none
ClusterName = lab
ProctrackType = proctrack/cgroup
TaskPlugin = task/cgroup
ConstrainRAMSpace = yes
PropagateResourceLimits = NONE
SLURM_VERSION = 24.11.5
SlurmctldHost[0] = c1
SlurmUser = slurm(64030)
UnkillableStepTimeout = 180 sec
"""
_NODE = (
    "NodeName={name} Arch=x86_64 Gres=(null) NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux x "
    "RealMemory=1000 State={state} Partitions=gpu BootTime=1789000000 SlurmdStartTime=1789000000\n"
)
_ANSWERS = {
    "scontrol": "case \"$*\" in ping) f=ping;; 'show config') f=config;; *nodes) f=nodes;; *) f=partitions;; esac",
    "sacctmgr": "f=slurmdbd",
    "squeue": "f=queue",
}
#: Options first, then the program and its words; the node is told as slurmd would.
_SRUN = """
while [ "${1#-}" != "$1" ]; do
    case "$1" in --nodelist=*) SLURMD_NODENAME=${1#*=}; export SLURMD_NODENAME;; esac
    shift
done
f=%s/srun-$SLURMD_NODENAME
[ -e "$f" ] && . "$f"
exec "$@"
"""


class StandIn:
    """``folder``: for slurm.bin."""

    def __init__(self, folder: Path, states: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, choice in _ANSWERS.items():
            self._program(name, f'{choice}\n[ -e {folder}/$f ] || exit 1\nexec cat "{folder}/$f"')
        self._program("srun", _SRUN % folder)
        self.says("ping", "Slurmctld(primary) at c1 is UP\n")
        self.says("config", _CONFIG)
        self.says("nodes", "".join(_NODE.format(name=name, state=state) for name, state in states.items()))
        self.says("partitions", "PartitionName=gpu State=UP DisableRootJobs=NO\n")
        self.says("slurmdbd", "lab|10.0.0.1|6817\n")
        self.says("queue", "")

    def says(self, what: str, text: str) -> None:
        (self.folder / what).write_text(text)

    @staticmethod
    def node(name: str, state: str) -> str:
        return _NODE.format(name=name, state=state)

    def on(self, node: str, script: str) -> None:
        """What srun does first on that node."""
        self.says(f"srun-{node}", script)

    def _program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)
