"""By which ways the doctor reaches the nodes that were chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nccl_slurm.config import Config
from nccl_slurm.doctor import choose
from nccl_slurm.doctor.choose import Choice
from nccl_slurm.doctor.reach import Closed, IdleJob, JobStep, Ssh, Way
from nccl_slurm.doctor.read.scontrol import partition_fields
from nccl_slurm.doctor.slurm import AskedSlurm
from nccl_slurm.errors import ConfigError
from nccl_slurm.scheduler.client import NodeState

__all__ = ["Ways"]


@dataclass
class Ways:
    """``only_ssh``: as ``--ssh``. ``no_ssh``: why SSH can't be used, filled by `to`."""

    slurm: AskedSlurm
    config: Config
    only_ssh: bool
    no_ssh: list[str] = field(default_factory=list)

    def to(
        self, choice: Choice, known: Mapping[str, NodeState], fields: Mapping[str, Mapping[str, str]]
    ) -> Callable[[str], Sequence[Way]]:
        """Beside the job; else a job on an idle node; else, and where these fail, SSH.

        ``known``, ``fields``: nodes as Slurm has them. Raises ConfigError where there is only SSH, and no account.
        """
        ssh = self._ssh(choice.raw_id, known)
        step = None if choice.job is None or self.only_ssh else self._step(choice)
        idle = None if self.only_ssh else self._idle_job(fields)

        def ways(node: str) -> Sequence[Way]:
            state = known.get(node)
            if step is not None and state is not None and choose.answers(state):
                return [step, *ssh]
            if idle is not None and state is not None and choose.is_idle(state):
                return [idle, *ssh]
            return ssh or [Closed(f"{choose.closed(state)}; there is no SSH account (ssh.user)")]

        return ways

    def _step(self, choice: Choice) -> JobStep:
        from nccl_slurm.live.step import as_owner

        assert choice.job is not None
        user = as_owner(choice.job.uid, choice.job.id)
        return JobStep(str(self.slurm.bin_folder), self.slurm.conf, choice.job.raw_id, user)

    def _idle_job(self, fields: Mapping[str, Mapping[str, str]]) -> IdleJob:
        rows = partition_fields(said) if isinstance(said := self.slurm.said("partitions"), str) else {}
        root = os.geteuid() == 0
        up = [name for name, row in rows.items() if row.get("State") == "UP"]
        open_to = [name for name in up if not (root and rows[name].get("DisableRootJobs") == "YES")]
        return IdleJob(str(self.slurm.bin_folder), self.slurm.conf, fields, open_to)

    def _ssh(self, job: int | None, known: Mapping[str, NodeState]) -> list[Way]:
        """None where no account is configured."""
        from nccl_slurm.collect.fetch import visitor_of

        try:
            if not self.config.ssh.user:
                raise ConfigError("ssh.user is empty in nccl-slurm.toml: nodes that are not idle are not visited")
            visitor = visitor_of(self.config)
            visitor.check()
        except ConfigError as error:
            if self.only_ssh:
                raise
            self.no_ssh.append(f"SSH: {error}")
            return []
        return [Ssh(visitor, {name: node.address or name for name, node in known.items()}, job)]
