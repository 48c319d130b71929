"""Reading on a job's nodes by one more step of the job (``srun --overlap``), as its owner.

Measured on 22.05.8: the owner alone may start a step in a job; root and ``--uid`` are refused, so root takes the
owner's rights first. The step takes nothing from the job's other steps and stays in its accounting. A step that fails
raises the job's DerivedExitCode: so what it runs always ends with 0, it is never ended from here, and a node on which
it can't start at all (down, not responding) is a reason to read shared files alone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from nccl_slurm.errors import InputError, NotYours
from nccl_slurm.live.reader import Collected, Collection, Question, Told
from nccl_slurm.model import READER_STEP

__all__ = ["StepReader", "as_owner"]

_LOOK_S = 0.1
#: Beyond the reader's own limit, for srun's way to the nodes and back.
_SPARE_S = 15.0
#: ``$0`` is the limit; sh has no PATH in a step without the user's environment. Its status is 0 whatever happens.
_SCRIPT = 'PATH=/usr/bin:/bin; export PATH; timeout -k 5 "$0" "$@" 2>&1; exit 0'


@dataclass
class StepReader:
    """``bin_folder``, ``conf``: Slurm's. ``program``: nccl-slurm-node as the nodes have it. ``limit_s``: a look."""

    bin_folder: str
    conf: str
    program: str
    limit_s: float
    _left: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self, question: Question, told: Told) -> Collection:
        collected = Collected(question.job.nodes)
        self._left = [child for child in self._left if child.poll() is None]
        if self._left:
            return collected.answers("not asked: the step of the last look has not ended yet")
        with tempfile.TemporaryFile() as out:
            child = self._start(question, out)
            why = self._await(child, out, collected, told)
        return collected.answers(why or _with_remedy(collected.words) or "no answer")

    def _start(self, question: Question, out: IO[bytes]) -> subprocess.Popen[bytes]:
        """In a session of its own: an interrupted watch leaves the step to its end, which is near. A file, no pipe,
        takes its output: srun would end the step, as failed, when a pipe has no reader any more."""
        try:
            return subprocess.Popen(
                self._command(question),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", **({"SLURM_CONF": self.conf} if self.conf else {})},
                cwd="/",
                start_new_session=True,
                **as_owner(question.job.uid, question.job.id),
            )
        except OSError as error:
            program = os.path.join(self.bin_folder, "srun")
            raise InputError(f"{program} can't be run: {error.strerror}; set slurm.bin, or give --no-step") from None

    def _command(self, question: Question) -> list[str]:
        job, count = question.job, str(len(question.job.nodes))
        srun = [os.path.join(self.bin_folder, "srun"), f"--jobid={job.raw_id}", f"--job-name={READER_STEP}"]
        srun += ["--overlap", f"--nodes={count}", f"--ntasks={count}", "--gres=none", "--mpi=none", "--input=none"]
        srun += ["--quiet", "--chdir=/", "--kill-on-bad-exit=0", "--export=NCCL_SLURM_WATCH=on"]
        asked = ["live", f"--job={job.raw_id}"]
        if question.ras:
            asked += [f"--ras={question.ras}", f"--ras-on={job.nodes[0]}"]
        run = ["/bin/sh", "-c", _SCRIPT, f"{self.limit_s:g}", self.program, *asked]
        return [*srun, *run, "--", *question.paths]

    def _await(self, child: subprocess.Popen[bytes], out: IO[bytes], collected: Collected, told: Told) -> str:
        """Why nodes that gave no answer gave none; empty where srun ended."""
        lines, end = _Lines(out, collected.feed), time.monotonic() + self.limit_s + _SPARE_S
        while True:
            over = child.poll() is not None
            lines.take(last=over)
            told(collected.whole)
            if over:
                return ""
            if time.monotonic() > end:
                self._left.append(child)
                return f"no answer within {self.limit_s + _SPARE_S:g} s"
            time.sleep(_LOOK_S)


class _Lines:
    """Whole lines of a file that grows."""

    def __init__(self, file: IO[bytes], feed: Callable[[str], None]) -> None:
        self._descriptor, self._feed, self._at, self._rest = file.fileno(), feed, 0, b""

    def take(self, *, last: bool) -> None:
        while more := os.pread(self._descriptor, 1 << 20, self._at):
            self._at += len(more)
            *lines, self._rest = (self._rest + more).split(b"\n")
            for line in lines:
                self._feed(line.decode("ascii", "replace"))
        if last and self._rest:
            self._feed(self._rest.decode("ascii", "replace"))


def _with_remedy(words: str) -> str:
    """``words`` of coreutils' timeout where it can't run the reader."""
    if "failed to run command" not in words:
        return words
    return f"{words}; install the node's part there (install.sh --node), or set live.reader to where nccl-slurm-node is"


def as_owner(uid: int | None, job_id: str) -> dict[str, Any]:
    """Arguments for Popen. Raises NotYours, InputError."""
    if uid is None:
        raise InputError(f"job {job_id}: Slurm told no user of it; try again")
    if os.geteuid() != 0:
        if os.geteuid() != uid:
            raise NotYours(f"job {job_id} is not yours: only its owner and root may look at it")
        return {}
    user = None
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid)
    if user is None:
        raise InputError(f"job {job_id}: uid {uid} is not known on this host; run this where it is")
    return {"user": uid, "group": user.pw_gid, "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid)}
