"""What a running job's ranks left on this node until now, for `nccl-slurm watch`: one answer, in short lines.

Runs in a step of the job, as its user, or started by root, who gives root away (`rights`). Nothing is written, no
process of the job is touched. Always ends with status 0 but for wrong usage: a step that failed would be seen in the
job's DerivedExitCode.

A line is ``NODE NUMBER COUNT TEXT``: slurmstepd hands lines of up to 1,024 bytes on whole, longer ones in parts,
between which those of other nodes come. The texts together are base64 of the packed JSON.
"""

from __future__ import annotations

import base64
import io
import json
import os
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from nccl_slurm.capture import patterns, ras, rights, userread
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.errors import ConfigError, NcclSlurmError
from nccl_slurm.model import Gap
from nccl_slurm.parse.folder import Source

__all__ = ["RAS_FILE", "Question", "lines"]

#: Name under which RAS's answer is cited.
RAS_FILE = "ras"
_CHUNK = 800
_RAS_LIMIT_S = 10.0
_CPU_S = 60


@dataclass(frozen=True)
class Question:
    """``ras``: address to ask RAS at, empty where it is not asked on this node. ``uid`` None: of this process."""

    job_id: int
    node: str
    ras: str = ""
    uid: int | None = None
    gid: int | None = None
    user: str | None = None
    paths: Sequence[str] = field(default_factory=tuple)


def lines(conf: Conf, question: Question) -> Iterator[str]:
    """The answer. Never raises on what it finds; what can't be read is a gap in it."""
    try:
        answer = _answer(conf, question)
    except (NcclSlurmError, OSError, MemoryError) as error:
        answer = userread.nothing_read(f"{type(error).__name__}: {error}")
    return packed(question.node, {**answer, "now": time.time()})


def packed(node: str, answer: Any) -> Iterator[str]:
    text = json.dumps(answer, separators=(",", ":"), allow_nan=False)
    data = base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")
    parts = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]
    return (f"{node} {number} {len(parts)} {part}" for number, part in enumerate(parts))


def _answer(conf: Conf, question: Question) -> Any:
    try:
        rows = patterns.rows(conf)
    except ConfigError as error:
        return userread.nothing_read(str(error))
    uid = os.getuid() if question.uid is None else question.uid
    gid = os.getgid() if question.gid is None else question.gid
    rights.limit_resources(_CPU_S, userread.MEMORY_BYTES)
    rights.become(uid, gid, question.user)
    folder = os.path.join(conf.spool, str(question.job_id), "user")
    if os.path.lexists(os.path.join(folder, "capture-off")):
        return userread.nothing_read(CAPTURE_OFF)
    gaps: list[Gap] = []
    there = os.path.isdir(folder)
    if not there:
        gaps.append(Gap("user files", "the run has no user folder on this node, or it can't be seen from here"))
    asked = _ras(question, gaps) if question.ras else []
    request = userread.Request(uid, gid, question.user, question.node, question.paths)
    return userread.read(rows, request, [*([folder] if there else []), *question.paths], asked, gaps)


def _ras(question: Question, gaps: list[Gap]) -> list[Source]:
    try:
        data = ras.status(question.ras, _RAS_LIMIT_S)
    except ConnectionRefusedError:
        why = f"nothing listens at {question.ras}: NCCL before 2.24, NCCL_RAS_ENABLE=0, or no communicator now"
        gaps.append(Gap("NCCL RAS", why))
        return []
    except (OSError, ValueError) as error:
        gaps.append(Gap("NCCL RAS", f"{question.ras}: {error}"))
        return []
    return [Source(RAS_FILE, lambda: io.BytesIO(data), len(data), time.time(), question.node, "job")]
