"""Slurm's commands on a running test cluster, as root or as one of its users, and their answers."""

from __future__ import annotations

import pwd
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.cluster import job_python
from tests.cluster.processes import wait_until
from tests.cluster.scratch import USERS
from tests.cluster.starter import Starter

__all__ = ["FINAL", "PATH", "Client", "ClusterError", "succeed"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Base states that a job doesn't leave (sacct(1), JOB STATE CODES); a requeued run's REQUEUED is not one of them.
FINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


class ClusterError(RuntimeError):
    """The cluster can't be had, or did not do in time what it was asked. The text is fit for a person."""


_STARTER = Starter()


class Client:
    """Needs the scratch folder of a running cluster alone: a second process can ask a cluster that it did not start."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder
        self.conf = folder / "etc" / "slurm.conf"
        self.home = folder / "home" / "alice"
        self.programs = folder / "jobs"
        self.daemon_config = folder / "etc" / "nccl-slurm.toml"
        #: A link to Slurm's commands, where they are not the machine's own (see `releases`).
        self.bin = folder / "bin"
        self.env = {"PATH": f"{self.bin}:{PATH}", "LANG": "C.UTF-8", "SLURM_CONF": str(self.conf)}
        self.env["NCCL_SLURM_CONFIG"] = str(self.daemon_config)

    @property
    def slurm_bin(self) -> Path:
        """The folder of Slurm's commands."""
        return self.bin if self.bin.exists() else Path("/usr/bin")

    def run(
        self,
        command: Sequence[str | Path],
        *,
        user: str | None = None,
        check: bool = True,
        timeout: float = 300.0,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root or as ``user``, in that user's home folder; ``check`` raises ClusterError."""
        who = pwd.getpwnam(user or "root")
        home = self.scratch / "home" / user if user in USERS else self.scratch
        done = subprocess.run(
            command,
            env=self._env_of(who.pw_name, home),
            cwd=home,
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            errors="replace",
            input=stdin,
            timeout=timeout,
        )
        return succeed(done) if check else done

    def _env_of(self, user: str, home: Path) -> dict[str, str]:
        return {**self.env, "HOME": str(home), "USER": user, "SHELL": "/bin/sh"}

    def slurm(
        self,
        program: str,
        *args: str,
        user: str | None = None,
        check: bool = True,
        timeout: float = 300.0,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command (see `run`)."""
        return self.run([program, *args], user=user, check=check, timeout=timeout, stdin=stdin)

    def nccl_slurm(
        self, *args: str, user: str | None = None, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run ``nccl-slurm ARGS`` of this checkout, with the cluster's nccl-slurm.toml."""
        if user is None:
            done = _STARTER.run(args, self._env_of("root", self.scratch), self.scratch, timeout)
            return succeed(done) if check else done
        start = "from nccl_slurm.cli.main import main; main()"
        python = self.job_python() if user in USERS else Path(sys.executable)
        return self.run([python, "-c", start, *args], user=user, check=check, timeout=timeout)

    def job_python(self) -> Path:
        """A Python that ordinary users can run, with what this checkout's environment has (torch, if it is there)."""
        return job_python.job_python(self.scratch / "job-python")

    def sbatch(self, script: str, *options: str, user: str = "alice") -> str:
        """Submit the text of a batch script; returns the job id. Output goes to ``home/USER/slurm-JOBID.out``."""
        answer = self.slurm("sbatch", "--parsable", *options, user=user, stdin=script)
        return answer.stdout.strip().partition(";")[0]

    def output(self, job: str, user: str = "alice") -> str:
        """What the job has printed so far; empty where it has printed nothing."""
        path = self.scratch / "home" / user / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job_states(self, job: str) -> list[str]:
        """Base states, one a task or component: from scontrol, or from accounting once slurmctld forgot the job."""
        shown = self.slurm("scontrol", "-o", "show", "job", job, check=False)
        if shown.returncode == 0:
            return re.findall(r"\bJobState=(\S+)", shown.stdout)
        return [row["state"].partition(" ")[0] for row in self.sacct(job, "state")]

    def wait_job(self, job: str, states: Iterable[str] = FINAL, timeout: float = 60.0) -> str:
        """Wait until every task or component of the job is in one of ``states``; returns the first one's state."""
        wanted = {states} if isinstance(states, str) else set(states)
        seen: list[str] = []

        def arrived() -> bool:
            seen[:] = self.job_states(job)
            return bool(seen) and wanted.issuperset(seen)

        if not wait_until(arrived, timeout, every=0.2):
            raise ClusterError(
                f"job {job} is {','.join(seen)} after {timeout:g} s; its output:\n{self.output(job)[-2000:]}"
            )
        return seen[0]

    def sacct(self, job: str, fields: str, *, steps: bool = False, duplicates: bool = False) -> list[dict[str, str]]:
        """Rows of sacct, one a job (or ``steps`` too), keys in lower case. ``duplicates`` adds requeued runs."""
        options = ["-n", "-P", "-j", job, "-o", fields, *([] if steps else ["-X"]), *(["-D"] if duplicates else [])]
        names = fields.lower().split(",")
        rows = self.slurm("sacct", *options).stdout.splitlines()
        return [dict(zip(names, row.split("|", len(names) - 1), strict=True)) for row in rows]

    def comment(self, job: str) -> str:
        """The job's comment in accounting: of the newest run; empty where there is none."""
        rows = self.sacct(job, "comment")
        return rows[0]["comment"] if rows else ""

    def wait_comment(self, job: str, pattern: str = r"\[nccl-slurm: ", timeout: float = 60.0) -> str:
        """Wait until the comment matches; returns it."""
        if not wait_until(lambda: re.search(pattern, self.comment(job)) is not None, timeout, every=0.3):
            raise ClusterError(
                f"job {job} has no such comment after {timeout:g} s: {pattern!r} in {self.comment(job)!r}"
            )
        return self.comment(job)

    def node(self, name: str) -> dict[str, str]:
        """Fields of ``scontrol show node`` whose values hold no blank."""
        shown = self.slurm("scontrol", "-o", "show", "node", name).stdout
        return dict(re.findall(r"\b(\w+)=(\S*)", shown))

    def node_state(self, name: str) -> str:
        """As Slurm writes it: ``IDLE``, ``MIXED+DRAIN``, ``DOWN+NOT_RESPONDING`` (22.05 writes ``DOWN*``) …"""
        return self.node(name).get("State", "")

    def node_states(self) -> dict[str, str]:
        """Of all nodes, by one question."""
        shown = self.slurm("scontrol", "-o", "show", "node").stdout
        return dict(re.findall(r"^NodeName=(\S+) .*? State=(\S+)", shown, re.MULTILINE))

    def resume(self, name: str) -> None:
        self.slurm("scontrol", "update", f"nodename={name}", "state=resume")


def succeed(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        command = " ".join(map(str, done.args))
        raise ClusterError(f"{command} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done
