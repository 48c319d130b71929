"""A node's worth of files for the hooks: copies of the hooks as an installer leaves them, and their capture.conf."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HOOKS = ("prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm", "task_prolog", "epilog_slurmctld")
#: How slurmd may start a hook: by its first line, and (a site's wrapper) by a shell with strict options.
SHELLS: tuple[tuple[str, ...], ...] = ((), ("dash", "-eu"), ("bash", "-eu"), ("bash", "--posix", "-eu"))
SLURM_COMMANDS = ("scontrol", "squeue", "sacct", "sacctmgr", "sinfo", "srun", "scancel", "sbatch", "strigger", "sdiag")
USER = 65534
PROLOG = {
    "SLURM_JOB_ID": "42",
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_UID": str(USER),
    "SLURM_JOB_GID": str(USER),
    "SLURM_JOB_USER": "nobody",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_JOB_GPUS": "0,1",
}
EPILOG = {**PROLOG, "SLURM_JOB_EXIT_CODE2": "9:0", "SLURM_JOB_DERIVED_EC": "1024"}


@dataclass
class Site:
    """``folder`` is readable by everybody: task_prolog runs as the job's user."""

    folder: Path

    def __post_init__(self) -> None:
        self.spool = self.folder / "spool"
        self.conf = self.folder / "capture.conf"
        self.prefix = self.folder / "prefix"
        self.hooks = self.folder / "hooks"
        self.called = self.folder / "slurm-command-called"
        for hook in HOOKS:
            target = self.folder / hook
            target.parent.mkdir(exist_ok=True)
            text = (CHECKOUT / "slurm" / hook).read_text(encoding="utf-8")
            text = re.sub(r"(?m)^NCCL_SLURM_CONF=.*$", f"NCCL_SLURM_CONF={self.conf}", text)
            target.write_text(text.replace("/var/spool/nccl-slurm", f"{self.folder}/default-spool"))
            target.chmod(0o755)
        self._make_traps()
        self.worker_writes(f'echo "$@" >>{self.folder}/worker.log')
        self.configure()

    def configure(self, **values: str) -> None:
        ours = {"HOOKS": self.hooks, "PREFIX": self.prefix, "SPOOL": self.spool, "EVENTS": self.folder / "events"}
        keys = {**{key: str(path) for key, path in ours.items()}, **values}
        self.conf.write_text("".join(f"NCCL_SLURM_{key}='{value}'\n" for key, value in keys.items()))
        self.conf.chmod(0o644)

    def worker_writes(self, line: str) -> None:
        node = self.hooks / "nccl-slurm-node"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_text(f"#!/bin/sh\nexec >/dev/null # the hook waits for the end of its pipe\n{line}\n")
        node.chmod(0o755)

    def _make_traps(self) -> None:
        traps = self.folder / "traps"
        traps.mkdir()
        for name in SLURM_COMMANDS:
            (traps / name).write_text(f"#!/bin/sh\necho {name} >>{self.called}\n")
            (traps / name).chmod(0o755)

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def run(
        self,
        hook: str,
        env: Mapping[str, str],
        *,
        shell: Sequence[str] = (),
        user: int | None = None,
        limit: float = 10.0,
    ) -> subprocess.CompletedProcess[str]:
        """As Slurm does it: no PATH in root's hooks, nothing on standard input. Slurm's commands are traps.

        ``limit`` tells a hook that waits for what hangs from one that does not; how fast hooks are is a bench's matter.
        """
        path = {"PATH": f"{self.folder}/traps:/usr/bin:/bin"} if user is not None or "PATH" in env else {}
        start = time.monotonic()
        done = subprocess.run(
            [*(shutil.which(word) or word for word in shell[:1]), *shell[1:], str(self.folder / hook)],
            env={**env, **path},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        took = time.monotonic() - start
        assert took < limit, f"{hook} took {took:.2f} s"
        assert not self.called.exists(), self.called.read_text()
        return done

    @property
    def mark(self) -> Path:
        """Where a prolog or epilog notes that its file work hangs."""
        return Path(f"/run/nccl-slurm{str(self.conf).replace('/', '-')}.{PROLOG['SLURMD_NODENAME']}")

    def runs(self) -> list[Path]:
        return sorted(path for path in self.spool.glob("*.*") if path.is_dir() and not path.is_symlink())

    def only_run(self) -> Path:
        (run,) = self.runs()
        return run

    def worker_log(self, lines: int = 1) -> list[str]:
        """The worker starts after the hook has ended; ten seconds are plenty even on a loaded machine."""
        log = self.folder / "worker.log"
        for _ in range(1000):
            if log.exists() and len(log.read_text().splitlines()) >= lines:
                break
            time.sleep(0.01)
        return log.read_text().splitlines() if log.exists() else []


def variables(run: Path, name: str) -> dict[str, str]:
    lines = (run / "root" / name).read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def mode(path: Path) -> int:
    return os.lstat(path).st_mode & 0o7777
