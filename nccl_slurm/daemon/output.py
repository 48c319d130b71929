"""The job's own output (stdout, stderr, torchrun's log folder), read with the rights of its user.

The reading is done by the node side's ``read-user`` in a child process: root never opens a path that a user chose. What
comes back is as hostile as the logs and is only ever text and numbers of trust ``job``.
"""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nccl_slurm
from nccl_slurm.model import Fact, Gap, Parsed, Rank

__all__ = ["OutputReader", "parsed_from_json"]

#: The child's answer is cut off here; its own caps on facts keep it far below.
_MAX_ANSWER = 64 * 1024 * 1024


@dataclass(frozen=True)
class OutputReader:
    """``patterns`` is the compiled JSON of pattern rows; ``limit_s`` bounds the whole reading."""

    patterns: str
    limit_s: float
    python: str = sys.executable

    def read(self, paths: Sequence[str], uid: int) -> Parsed:
        """Never raises: what could not be read is a gap."""
        if not paths:
            return Parsed(gaps=(Gap("job output", "Slurm told no path of it"),))
        try:
            return parsed_from_json(self._ask(self._command(paths, uid)))
        except KeyError:
            return Parsed(gaps=(Gap("job output", f"uid {uid} is not known on this host"),))
        except subprocess.TimeoutExpired:
            return Parsed(gaps=(Gap("job output", f"reading took longer than {self.limit_s:.0f} s"),))
        except (OSError, ValueError, TypeError, subprocess.CalledProcessError) as error:
            return Parsed(gaps=(Gap("job output", f"could not be read: {str(error)[:200]}"),))

    def _command(self, paths: Sequence[str], uid: int) -> list[str]:
        user = pwd.getpwuid(uid)
        script = Path(nccl_slurm.__file__).parent / "capture" / "main.py"
        who = ["--uid", str(uid), "--gid", str(user.pw_gid), "--user", user.pw_name]
        return [self.python, "-I", "-S", str(script), "read-user", *who, "--", *paths]

    def _ask(self, command: Sequence[str]) -> Any:
        clean = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "NCCL_SLURM_PATTERNS": self.patterns}
        with subprocess.Popen(
            command, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        ) as child:
            try:
                out, _ = child.communicate(timeout=self.limit_s)
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, "read-user")
        if len(out) > _MAX_ANSWER:
            raise ValueError("the answer is too large")
        return json.loads(out)


def parsed_from_json(value: Any) -> Parsed:
    """Raises TypeError, KeyError or ValueError on anything that ``read-user`` does not print."""
    return Parsed(
        facts=[Fact.from_json(fact) for fact in value["facts"]],
        ranks=[Rank.from_json(rank) for rank in value["ranks"]],
        gaps=[Gap(**gap) for gap in value["gaps"]],
        world_size=value["world_size"],
        bytes_read=int(value.get("bytes_read", 0)),
        lines_unknown=int(value.get("lines_unknown", 0)),
    )
