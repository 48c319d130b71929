"""One node of a test cluster, and what can be wrong with it: its spool, its Python, its capture.conf, its GPU query.

Each node has a capture.conf of its own (it reads the cluster's), so that conditions on different nodes don't meet.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import machine, mounts
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["Node", "Spoil", "a_full_disk", "hangs", "prepare"]

#: Workers end within a test; a site gives them minutes.
LIMITS = "NCCL_SLURM_WORKER_LIMIT_S=20\nNCCL_SLURM_GPU_QUERY_LIMIT_S=3\n"
#: nvidia-smi of all nodes, first in the workers' PATH: each node's own where it has one. A command of the worker gets
#: no SLURMD_NODENAME, its parent has it.
SMI = """\
#!/bin/sh
node=$(tr '\\0' '\\n' </proc/$PPID/environ | sed -n 's/^SLURMD_NODENAME=//p')
[ -x "{folder}/$node" ] || {{ echo "no GPU here"; exit 9; }}
exec "{folder}/$node"
"""


def prepare(cluster: Cluster) -> list[Node]:
    """Rewires the hooks of a running cluster, as an installer with another prefix would: one line in each."""
    line = f"NCCL_SLURM_CONF={cluster.scratch}/etc/capture.${{SLURMD_NODENAME:-controller}}.conf"
    for path in (cluster.scratch / "prefix").rglob("*"):
        if path.is_file():
            path.write_text(re.sub(r"(?m)^NCCL_SLURM_CONF=.*$", lambda _: line, path.read_text()))
    cluster.capture_conf.write_text(cluster.capture_conf.read_text() + LIMITS)
    (cluster.scratch / "etc" / "capture.controller.conf").write_text(f". {cluster.capture_conf}\n")
    smi = cluster.programs / "smi"
    smi.mkdir()
    (smi / "nvidia-smi").write_text(SMI.format(folder=smi))
    (smi / "nvidia-smi").chmod(0o755)
    nodes = [Node(cluster, name) for name in cluster.nodes]
    for node in nodes:
        node.mend()
    return nodes


@dataclass(frozen=True)
class Node:
    cluster: Cluster
    name: str

    @property
    def spool(self) -> Path:
        return self.cluster.spool / self.name

    @property
    def conf(self) -> Path:
        return self.cluster.scratch / "etc" / f"capture.{self.name}.conf"

    @property
    def own(self) -> Path:
        """A folder for what a condition needs."""
        return self.cluster.programs / "own" / self.name

    @property
    def smi(self) -> Path:
        return self.cluster.programs / "smi" / self.name

    def mend(self) -> None:
        """As it was before any condition, with an empty spool and no worker: one that runs takes later jobs' runs too,
        by the capture.conf that it was started with."""
        wait_until(self._end_hooks, 20.0, every=0.2)
        for path in (self.spool, self.conf, self.own, self.smi):
            remove(path)
        self.spool.mkdir(mode=0o711)
        self.own.mkdir(parents=True)
        self.configure()

    def _end_hooks(self) -> bool:
        kill(hooks := self.hooks(), signal.SIGKILL)
        return not hooks

    def configure(self, *lines: str) -> None:
        self.conf.write_text("\n".join([f". {self.cluster.capture_conf}", *lines, ""]))

    def program(self, name: str, text: str) -> Path:
        path = self.own / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def hooks(self) -> set[int]:
        """Processes of ours on this node: hooks, their children, workers."""
        return {pid for pid in machine.processes_of(self.cluster.scratch, self.name) if not _is_slurms(pid)}

    def workers(self) -> set[int]:
        return {pid for pid in self.hooks() if b"capture/main.py" in _read(pid, "cmdline")}

    def hook_of(self, context: str) -> int | None:
        """The shell that slurmd started and waits for; ``context``: prolog_slurmd or epilog_slurmd."""
        wanted = f"SLURM_SCRIPT_CONTEXT={context}".encode()
        of_context = {pid for pid in self.hooks() if wanted in _read(pid, "environ").split(b"\0")}
        return next((pid for pid in of_context if _parent(pid) not in of_context and _parent(pid) != 1), None)

    def records(self, job: str) -> list[Path]:
        return sorted((self.cluster.shared / "new").glob(f"{job}.*.{self.name}.json"))

    def runs(self, job: str) -> list[Path]:
        return sorted(self.spool.glob(f"{job}.*"))


Spoil = Callable[[Node, ExitStack], None]


def hangs(folder: Path, stack: ExitStack) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(mounts.hung(folder))


def a_full_disk(folder: Path, stack: ExitStack) -> None:
    """1 MB, no byte of it free; names for new files there are."""
    stack.enter_context(mounts.mounted(folder, "-t", "tmpfs", "-o", "size=1m,mode=711", "none"))
    subprocess.run(["dd", "if=/dev/zero", f"of={folder}/filled", "bs=64k"], capture_output=True, check=False)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def kill(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_slurms(pid: int) -> bool:
    """slurmd, slurmstepd, and tasks: only hooks and what they start have no SLURM_STEP_ID."""
    return _read(pid, "comm").startswith(b"slurm") or b"\0SLURM_STEP_ID=" in b"\0" + _read(pid, "environ")


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
