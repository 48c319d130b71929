"""Where each part of an installation lies."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Paths as the running system names them; ``on_disk`` gives the place to read or write now.

    ``prefix`` may be on the cluster's file system. ``hooks`` must not: Slurm drains a node whose hook can't be run.
    ``root`` stands before all paths while an image is made.
    """

    prefix: str = "/opt/nccl-slurm"
    hooks: str = "/opt/nccl-slurm/slurm"
    conf: str = "/etc/nccl-slurm"
    root: str = ""

    def on_disk(self, path: str) -> str:
        return self.root + path

    def as_options(self) -> str:
        """Those of install.sh that give these places, each with a blank before it; empty for the standard ones."""
        of, standard = ("prefix", "hooks", "conf"), Layout()
        return "".join(f" --{key} {getattr(self, key)}" for key in of if getattr(self, key) != getattr(standard, key))

    # Code

    @property
    def code(self) -> str:
        return os.path.join(self.prefix, "nccl_slurm")

    @property
    def venv(self) -> str:
        return os.path.join(self.prefix, "venv")

    @property
    def patterns_json(self) -> str:
        return os.path.join(self.prefix, "patterns.json")

    # What slurm.conf names: globs for the first two, one path each for the others

    @property
    def prolog_glob(self) -> str:
        return os.path.join(self.hooks, "prolog.d", "*")

    @property
    def epilog_glob(self) -> str:
        return os.path.join(self.hooks, "epilog.d", "*")

    @property
    def task_prolog(self) -> str:
        return os.path.join(self.hooks, "task_prolog")

    @property
    def epilog_slurmctld(self) -> str:
        return os.path.join(self.hooks, "epilog_slurmctld")

    @property
    def prolog(self) -> str:
        """The one file that ``prolog_glob`` matches."""
        return os.path.join(self.hooks, "prolog.d", "50-nccl-slurm")

    @property
    def epilog(self) -> str:
        """The one file that ``epilog_glob`` matches."""
        return os.path.join(self.hooks, "epilog.d", "50-nccl-slurm")

    @property
    def node_program(self) -> str:
        return os.path.join(self.hooks, "nccl-slurm-node")

    @property
    def spank(self) -> str:
        """Folder of the SPANK plugins, one a release of Slurm."""
        return os.path.join(self.hooks, "spank")

    # Configuration

    @property
    def capture_conf(self) -> str:
        return os.path.join(self.conf, "capture.conf")

    @property
    def daemon_conf(self) -> str:
        return os.path.join(self.conf, "nccl-slurm.toml")

    @property
    def rules_folder(self) -> str:
        return os.path.join(self.conf, "rules.d")

    # The system's own folders

    @property
    def units(self) -> str:
        return "/etc/systemd/system"

    @property
    def logrotate(self) -> str:
        return "/etc/logrotate.d/nccl-slurm"

    @property
    def tmpfiles(self) -> str:
        return "/etc/tmpfiles.d"

    @property
    def man(self) -> str:
        return "/usr/local/share/man"

    @property
    def completion(self) -> str:
        return "/usr/local/share/bash-completion/completions/nccl-slurm"

    @property
    def command(self) -> str:
        return "/usr/local/bin/nccl-slurm"

    @property
    def node_command(self) -> str:
        return "/usr/local/sbin/nccl-slurm-node"

    @property
    def state(self) -> str:
        return "/var/lib/nccl-slurm"
