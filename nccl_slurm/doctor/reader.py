"""Whoever reads the findings: as whom, and where, a command of the guide works for them as it is printed. Pure but for
`Reader.here`."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Reader"]

#: A step in a job that runs. Slurm lets its owner alone make one, and wants the raw id.
_STEP = re.compile(r"srun --jobid=\{job\} (?:--(?!nodelist=\{peer\})\S+ )*")
_ON_NODE = re.compile(r"\bssh (?:-o \S+ )?\{(?:node|host)\} ")
_QUOTED = re.compile(r"'([^']*)'\Z")
_NAMES = re.compile(r"\{([a-z_]+)\}")
#: Without these a line has nothing to look at.
_NEEDED = frozenset(
    {"pid", "path", "own_path", "conf", "state_folder", "interface", "batch_job", "reason", "class", "xid"}
)
_NEEDED_BY_STEP = frozenset({"job", "owner", "name", "host", "peer"})


@dataclass(frozen=True)
class Reader:
    """``local``: on the node that was looked at; ``named``: Slurm's name of it is known there. ``conf``: Slurm's
    commands find their slurm.conf by SLURM_CONF, which sudo would take away."""

    uid: int
    local: bool = False
    named: bool = True
    conf: bool = False

    @classmethod
    def here(cls, *, local: bool) -> Reader:
        return cls(os.geteuid(), local, not local or "SLURMD_NODENAME" in os.environ, "SLURM_CONF" in os.environ)

    def template(self, command: str, values: Mapping[str, str]) -> str | None:
        """The line that this person can run, with its placeholders; None where none would work: of a job that does not
        run, of a node or process that is not known."""
        step = _STEP.match(command)
        names = set(_NAMES.findall(command))
        needed = names & _NEEDED
        if step and self.local:
            command = command[step.end() :]
        elif command.startswith("srun --jobid="):
            needed |= (names | {"owner"}) & (_NEEDED | _NEEDED_BY_STEP)
        if _ON_NODE.search(command):
            if self.local:
                command = _QUOTED.sub(r"\1", _ON_NODE.sub("", command))
            else:
                needed |= names & {"node"}
        return None if any(not values.get(name) for name in needed) else command

    def values(self, command: str, values: Mapping[str, str]) -> dict[str, str]:
        """Those that are right in this line."""
        found = dict(values)
        if command.startswith("srun --jobid=") and "raw_job" in values:
            found["job"] = values["raw_job"]
        if not self.named:
            found.pop("node", None)
            found.pop("nodes", None)
        return found

    def run(self, line: str, owner: str) -> str:
        """``owner``: uid of the job's, in digits."""
        if not line.startswith("srun --jobid=") or not owner.isdigit() or int(owner) == self.uid:
            return line
        keeps = "--preserve-env=SLURM_CONF " if self.conf else ""
        return f"sudo {keeps}-u {shlex.quote(_name(int(owner)))} {line}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"#{uid}"
