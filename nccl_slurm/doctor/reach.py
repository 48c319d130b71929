"""How nodes are reached: by a step beside the job, by a short job on an idle node, by SSH, or here.

One step, job or connection a node, never one for all: a job of many nodes begins when all of them are free at one
moment and ends with its slowest, and a step of many nodes is not even launched where one of them is down. So a node
that hangs costs itself. Nobody waits in the queue (``--immediate``), nothing is ever started on a node that is not
idle, and a step in somebody's job always ends with 0: one that fails raises the job's DerivedExitCode.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from nccl_slurm.errors import NcclSlurmError, RemoteError
from nccl_slurm.model import DOCTOR_JOB, READER_STEP

__all__ = [
    "NO_PYTHON",
    "Answer",
    "Closed",
    "Here",
    "IdleJob",
    "JobStep",
    "NoPlace",
    "Ssh",
    "Unreached",
    "Way",
    "ask_all",
]

#: Beyond what the reader may take there, for the way and for what has to be killed.
_SPARE_S = 15.0
#: How long srun waits for an idle node; its prolog comes on top.
_IMMEDIATE_S = 10
_MAX_BYTES = 64 << 20
NO_PYTHON = "no Python 3.8 or newer in the usual places"
#: sh has no PATH in a step without the user's environment. ``-I``: nothing of the user's own is imported.
_FEED = (
    "PATH=/usr/bin:/bin; export PATH; "
    "for p in /usr/bin/python3 /usr/libexec/platform-python /usr/local/bin/python3 /opt/bin/python3; do "
    '[ -x "$p" ] && "$p" -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null 2>/dev/null && '
    '{{ timeout -k 5 {limit:g} "$p" -I -S -B - 2>&1; exit 0; }}; '
    f"done; echo {NO_PYTHON}; exit 0"
)
#: Nothing of the caller's; our own TaskProlog takes what has the second one for no rank.
_EXPORT = "--export=NCCL_SLURM_DOCTOR=on,NCCL_SLURM_WATCH=on"
#: By these a process is told that it is in a job, and which GPUs it may see.
_OF_A_JOB = ("SLURM_JOB_ID", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURMD_NODENAME")
#: Of the caller's environment: what srun(1) takes as options there and a site may require.
_SRUN_OPTIONS = ("SLURM_ACCOUNT", "SLURM_PARTITION", "SLURM_QOS", "SLURM_RESERVATION")

#: srun's words where a job or a step is not started at all, for no fault of the node: no room, a job that ended
#: meanwhile, no right (src/common/slurm_errno.c, src/api/allocate.c).
_NO_PLACE = re.compile(
    r"unable to allocate resources|immediate execution|nodes are busy|allocation failure"
    r"|already complet|job has expired|invalid job id|job allocation .* has been revoked|permission denied",
    re.I,
)
#: Of `collect.ssh`: the node answered, and our own account or key is what is not right.
_NOT_LET_IN = re.compile(r"is not let in with|has a passphrase|is not in \S*; compare it with")


class Unreached(Exception):
    """``str()``: why, in one line."""


class NoPlace(Unreached):
    """The scheduler gave no place on the node, our account is not let in, or what came is more than is taken (users
    write into it): no fault of the node."""


class Way(Protocol):
    """``name``: as `Observation.way` has it."""

    @property
    def name(self) -> str: ...

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        """What the node prints. ``limit_s``: for the program there. Raises `Unreached`."""
        ...


Place = Callable[[str, Way], AbstractContextManager[None]]


def feed(limit_s: float) -> str:
    """For sh: runs a Python program from standard input, and ends with 0."""
    return _FEED.format(limit=limit_s + 5.0)


@dataclass(frozen=True)
class JobStep:
    """``user``: arguments for Popen by which the child is the job's owner, whom alone Slurm lets make a step.

    No ``--gres``: with ``--overlap`` the step sees the GPUs of the job, without taking them. Where slurmd hangs and
    Slurm does not know it yet, the step ends as cancelled (0:39, seen on 22.05): nothing that we could do prevents it.
    """

    bin_folder: str
    conf: str
    raw_id: int
    user: Mapping[str, Any]
    name: str = "job-step"

    def command(self, node: str, limit_s: float) -> list[str]:
        options = [f"--jobid={self.raw_id}", f"--job-name={READER_STEP}", "--overlap", f"--nodelist={node}"]
        options += ["--nodes=1", "--ntasks=1", "--mem=0", "--mpi=none", "--quiet", "--chdir=/", "--kill-on-bad-exit=0"]
        options += [_EXPORT]
        return [os.path.join(self.bin_folder, "srun"), *options, "/bin/sh", "-c", feed(limit_s)]

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        """srun is never killed: the step would fail. It is left to its end, which the node's own limit brings."""
        limit = limit_s + _SPARE_S
        with _placed():
            return _run(self.command(node, limit_s), program, limit, _environment(self.conf), self.user)


@dataclass(frozen=True)
class IdleJob:
    """A job of one node, for a minute at most. ``nodes``: fields of ``scontrol -o show node``; ``partitions``: those
    that the caller may use, in Slurm's order."""

    bin_folder: str
    conf: str
    nodes: Mapping[str, Mapping[str, str]]
    partitions: Sequence[str]
    name: str = "job"

    def command(self, node: str, limit_s: float) -> list[str]:
        """Raises Unreached where the node can take no such job."""
        fields = self.nodes.get(node, {})
        mine = fields.get("Partitions", "").split(",")
        partition = next((one for one in self.partitions if one in mine), None)
        if partition is None:
            raise NoPlace("is in no partition that is up and open to you")
        memory = min(512, int(fields.get("RealMemory", "1") or 1) if fields.get("RealMemory", "1").isdigit() else 1)
        options = [f"--job-name={DOCTOR_JOB}", f"--time={_minutes(limit_s)}", f"--immediate={_IMMEDIATE_S}"]
        options += [f"--partition={partition}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
        options += [f"--mem={memory}", "--mpi=none", "--quiet", "--chdir=/", _EXPORT]
        options += [f"--gres={gres}"] if (gres := gpus_of(fields.get("Gres", ""))) else []
        return [os.path.join(self.bin_folder, "srun"), *options, "/bin/sh", "-c", feed(limit_s)]

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        """It is our own job: where it takes too long it is ended."""
        limit = _IMMEDIATE_S + 2 * limit_s + _SPARE_S
        with _placed():
            return _run(self.command(node, limit_s), program, limit, _environment(self.conf), {}, ours=True)


@contextmanager
def _placed() -> Iterator[None]:
    try:
        yield
    except Unreached as error:
        if _NO_PLACE.search(str(error)):
            raise NoPlace(str(error)) from None
        raise


def _minutes(limit_s: float) -> int:
    return max(1, int((limit_s + 5.0 + 59.0) // 60))


def gpus_of(gres: str) -> str:
    """``gpu:h100:8(S:0-1),shard:16`` → ``gpu:h100:8``: without asking for them a job can't see the GPUs."""
    return ",".join(re.findall(r"(?:^|,)(gpu(?::[^:,()]+)?:[0-9]{1,4})", gres))


class Ssh:
    """By the account and key of nccl-slurm.toml. ``addresses``: node → what is connected to. A key that is bound to
    ``nccl-slurm-node serve`` (docs/ssh.md) gets its answer from what is installed there."""

    name = "ssh"

    def __init__(self, visitor: Any, addresses: Mapping[str, str], job: int | None = None) -> None:
        self._visitor, self._addresses = visitor, addresses
        self._asked = "doctor" if job is None else f"doctor {job}"

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        from nccl_slurm.collect.ssh import Target

        try:
            with self._visitor.session(Target(node, self._addresses.get(node, node))) as session:
                try:
                    return _joined(session.feed(f"/bin/sh -c {shlex.quote(feed(limit_s))}", program))
                except RemoteError as error:
                    if "serve: " not in str(error):
                        raise
                return _joined(session.ask(self._asked))
        except NcclSlurmError as error:
            kind = NoPlace if _NOT_LET_IN.search(str(error)) else Unreached
            raise kind(str(error).removeprefix(f"{node}: ")) from None


@dataclass(frozen=True)
class Here:
    """This host."""

    python: str
    name: str = "local"

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        inside = {name: os.environ[name] for name in _OF_A_JOB if name in os.environ}
        environment = {"PATH": "/usr/bin:/bin", **inside}
        return _run([self.python, "-I", "-S", "-B", "-"], program, limit_s + _SPARE_S, environment, {})


@dataclass(frozen=True)
class Closed:
    """No way at all."""

    why: str
    name: str = "none"

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        raise NoPlace(self.why)


def _joined(chunks: Iterator[bytes]) -> bytes:
    parts, size = [], 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > _MAX_BYTES:
            raise NoPlace(f"its answer is larger than {_MAX_BYTES >> 20} MiB")
    return b"".join(parts)


def _environment(conf: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _SRUN_OPTIONS if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **kept, **({"SLURM_CONF": conf} if conf else {})}


def _run(
    argv: Sequence[str],
    program: bytes,
    limit_s: float,
    env: Mapping[str, str],
    user: Mapping[str, Any],
    *,
    ours: bool = False,
) -> bytes:
    """Files, no pipes, at both ends: srun would end a step, as failed, when a pipe has no reader any more."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        told.write(program)
        told.seek(0)
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=told,
                stdout=out,
                stderr=error,
                env=dict(env),
                cwd="/",
                start_new_session=True,
                **user,
            )
        except OSError as why:
            raise Unreached(f"{argv[0]} can't be run: {why.strerror}") from None
        try:
            child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            if ours:
                _end(child)
            else:
                _left.append(child)
            raise Unreached(f"no answer within {limit_s:g} s") from None
        if os.fstat(out.fileno()).st_size > _MAX_BYTES:
            raise NoPlace(f"its answer is larger than {_MAX_BYTES >> 20} MiB")
        data = os.pread(out.fileno(), _MAX_BYTES, 0)
        if not data:
            name = os.path.basename(argv[0])
            raise Unreached(f"{name}: {_last(os.pread(error.fileno(), 1 << 16, 0)).removeprefix(f'{name}: ')}")
        return data


#: Children that are left to their end; kept so that nobody warns of them.
_left: list[subprocess.Popen[bytes]] = []


def _end(child: subprocess.Popen[bytes]) -> None:
    """srun takes its job with it when it is told to end, not when it is killed."""
    child.terminate()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _last(data: bytes) -> str:
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no answer"


@dataclass(frozen=True)
class Answer:
    """Of one node: ``data`` and by which way, or ``why`` nothing came. ``sent``, ``received``: our clock. ``tried``:
    something was asked of the node itself."""

    node: str
    way: str
    data: bytes = b""
    why: str = ""
    sent: float = 0.0
    received: float = 0.0
    tried: bool = False


def ask_all(
    nodes: Sequence[str],
    ways: Callable[[str], Sequence[Way]],
    program: Callable[[str], bytes],
    *,
    limit_s: float,
    at_once: int = 128,
    place: Place = lambda node, way: nullcontext(),
) -> Iterator[Answer]:
    """As they come. ``ways`` of a node are tried in turn, each in its ``place``, which may be waited for, or refused by
    NoPlace. A node that hangs holds one of ``at_once`` places for as long as its ways have limits, and no other node.
    """
    waiting, running = list(reversed(nodes)), set[Future[Answer]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            node = waiting.pop()
            running.add(_started(partial(_ask, node, ways(node), program(node), limit_s, place)))
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _started(work: Callable[[], Answer]) -> Future[Answer]:
    """In a thread that the end of this process does not wait for."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _ask(node: str, ways: Sequence[Way], program: bytes, limit_s: float, place: Place) -> Answer:
    whys, tried = [], False
    for way in ways:
        try:
            with place(node, way):
                sent = time.time()
                return Answer(node, way.name, way.ask(node, program, limit_s), "", sent, time.time(), tried=True)
        except Unreached as error:
            tried = tried or not isinstance(error, NoPlace)
            whys.append(f"{error} ({way.name})" if len(ways) > 1 else str(error))
        except Exception as error:  # a fault of ours, or of a library: it must not cost the other nodes
            tried = True
            whys.append(f"{type(error).__name__}: {error} ({way.name})")
    return Answer(node, "", why="; ".join(whys) or "there is no way to it", tried=tried)
