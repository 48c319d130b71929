"""Asks hosts what they have: this one by sh, nodes by srun or by ssh. Reads from Slurm alone; srun runs short jobs.

A node that is down, busy or silent has no answer and a reason.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable, Iterable, Sequence

from nccl_slurm.errors import SlurmUnreachable
from nccl_slurm.install.site import Answer, read_answers
from nccl_slurm.install.slurmconf import Node, parse_nodes

__all__ = ["Probe", "Reached", "Slurm", "ask_here", "by_srun", "by_ssh", "srun_commands", "ssh_command"]

_LIMIT_S = 90
#: How long srun waits for CPUs.
_IMMEDIATE_S = 10
_AT_ONCE = 16
#: Of the caller's environment: what srun(1) takes as options there and a site may require.
_SRUN_OPTIONS = ("SLURM_ACCOUNT", "SLURM_PARTITION", "SLURM_QOS", "SLURM_RESERVATION")
#: A node whose last epilog still runs (of our own last check, say) is free in a moment.
_FREE = ("IDLE", "MIXED", "COMPLETING")
_HARMLESS = {"CLOUD", "COMPLETING", "PLANNED", "DYNAMIC_NORM", "DYNAMIC_FUTURE"}


@dataclass(frozen=True)
class Slurm:
    """``folder`` holds Slurm's commands."""

    folder: str
    conf: str | None = None

    def environment(self) -> dict[str, str]:
        """Without what a job of the caller's own would say."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER", *_SRUN_OPTIONS) if name in os.environ}
        conf = self.conf or os.environ.get("SLURM_CONF")
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **kept, **({"SLURM_CONF": conf} if conf else {})}

    def program(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def scontrol(self, *arguments: str) -> str:
        """Raises SlurmUnreachable."""
        done = _run([self.program("scontrol"), *arguments], self.environment())
        if done.returncode != 0:
            raise SlurmUnreachable(f"scontrol {' '.join(arguments)}: {_last_line(done.stderr or done.stdout)}")
        return done.stdout

    def nodes(self, names: str | None) -> list[Node]:
        """``names``: a host list as Slurm writes them; None: all."""
        return parse_nodes(self.scontrol("-o", "show", "node", *([names] if names else [])))

    def expanded(self, names: str) -> list[str]:
        return self.scontrol("show", "hostnames", names).split()

    def folded(self, names: Iterable[str]) -> str:
        return self.scontrol("show", "hostlistsorted", ",".join(names)).strip()

    def open_partitions(self) -> list[str]:
        """Up, and open to root, in Slurm's order."""
        lines = self.scontrol("-o", "show", "partition").splitlines()
        fields = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
        return [of["PartitionName"] for of in fields if of.get("State") == "UP" and of.get("DisableRootJobs") != "YES"]


@dataclass(frozen=True)
class Probe:
    """What a host is asked. ``patterns`` are what slurm.conf names or will name."""

    conf: str
    hooks: str
    user: str
    patterns: Sequence[str]
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def arguments(self, role: str) -> list[str]:
        return ["-s", self.nonce, role, self.conf, self.hooks, self.user, *self.patterns]

    @property
    def path(self) -> str:
        """The script, which goes to each host by standard input."""
        return os.path.join(os.path.dirname(__file__), "probe.sh")

    def script(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read()


@dataclass
class Reached:
    """Answers, whole or not, and why there is none."""

    answers: dict[str, Answer] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


def ask_here(probe: Probe) -> Answer:
    """This host, as a controller."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURMD_NODENAME": "controller"}
    done = _run(["/bin/sh", *probe.arguments("controller")], environment, probe.script())
    return read_answers(done.stdout, probe.nonce).get("controller") or Answer("controller")


# By srun


def srun_commands(slurm: Slurm, probe: Probe, nodes: Sequence[Node]) -> list[list[str]]:
    """Those that `by_srun` starts with."""
    groups = _groups(nodes, slurm.open_partitions(), Reached())
    return [_srun(slurm, probe, names, partition) for partition, names in groups.items()]


def _srun(slurm: Slurm, probe: Probe, names: Sequence[str], partition: str) -> list[str]:
    """One step of one short job; its script comes by standard input."""
    options = ["--quiet", "--job-name=nccl-slurm-check", "--time=2", f"--immediate={_IMMEDIATE_S}", "--export=NONE"]
    options += [f"--partition={partition}", f"--nodelist={','.join(names)}", f"--nodes={len(names)}"]
    options += ["--ntasks-per-node=1", "--cpus-per-task=1", "--mem=16", "--kill-on-bad-exit=0", "--wait=0"]
    return [slurm.program("srun"), *options, "/bin/sh", *probe.arguments("node")]


def by_srun(slurm: Slurm, probe: Probe, nodes: Sequence[Node]) -> Reached:
    reached = Reached()
    for partition, group in _groups(nodes, slurm.open_partitions(), reached).items():
        _ask_group(slurm, probe, partition, group, reached)
    return reached


def _groups(nodes: Sequence[Node], partitions: Sequence[str], reached: Reached) -> dict[str, list[str]]:
    """By partition, those that can take a job now."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        partition = next((name for name in partitions if name in node.partitions), None)
        if not _is_free(node.state):
            reached.silent[node.name] = f"is {node.state}"
        elif partition is None:
            reached.silent[node.name] = "is in no partition that is up and open to root"
        else:
            groups.setdefault(partition, []).append(node.name)
    return groups


def _is_free(state: str) -> bool:
    base, *flags = state.split("+")
    return base in _FREE and set(flags) <= _HARMLESS


def _ask_group(slurm: Slurm, probe: Probe, partition: str, names: list[str], reached: Reached) -> None:
    """One busy node keeps a whole job from starting: then halves of the group are tried."""
    done = _run(_srun(slurm, probe, names, partition), slurm.environment(), probe.script())
    reached.answers.update(read_answers(done.stdout, probe.nonce))
    missing = [name for name in names if name not in reached.answers or not reached.answers[name].complete]
    if len(names) == 1:
        reached.silent.update((name, f"srun: {_last_line(done.stderr) or 'no answer'}") for name in missing)
    elif missing:
        half = len(missing) // 2 if missing == names else 0
        for part in (missing[:half], missing[half:]):
            if part:
                _ask_group(slurm, probe, partition, part, reached)


# By ssh


def ssh_command(probe: Probe, node: Node) -> list[str]:
    remote = ["env", f"SLURMD_NODENAME={node.name}", "/bin/sh", *probe.arguments("node")]
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    return ["ssh", *options, f"root@{node.address}", "--", " ".join(map(shlex.quote, remote))]


def by_ssh(probe: Probe, nodes: Sequence[Node], command: Callable[[Probe, Node], list[str]] = ssh_command) -> Reached:
    reached = Reached()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for node, done in zip(nodes, pool.map(lambda node: _run(command(probe, node), None, probe.script()), nodes)):
            answer = read_answers(done.stdout, probe.nonce).get(node.name)
            if answer is None:
                reached.silent[node.name] = f"ssh: {_last_line(done.stderr) or 'no answer'}"
            else:
                reached.answers[node.name] = answer
    return reached


def _run(command: Sequence[str], env: dict[str, str] | None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Status 124 where it took too long. srun takes its job with it when it is told to end, not when it is killed."""
    try:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
    try:
        out, told = child.communicate(stdin, timeout=_LIMIT_S)
        return subprocess.CompletedProcess(command, child.returncode, out, told)
    except subprocess.TimeoutExpired:
        return _ended(child, command)


def _ended(child: subprocess.Popen[str], command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    child.terminate()
    try:
        out, _ = child.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
    return subprocess.CompletedProcess(command, 124, out, f"no end within {_LIMIT_S} s")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""
