"""Who reads on the nodes of a running job, and what came back, put together from short lines.

A reader is a function: `step.StepReader` reads by a step of srun; another way (ssh, an agent) is another function of
the same shape that hands the lines of ``nccl-slurm-node live`` to `Collected`.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nccl_slurm.daemon.output import cleaned
from nccl_slurm.live.look import Answer, File
from nccl_slurm.model import Job

__all__ = ["Collected", "Collection", "NodeReader", "Question", "files_of"]

#: Of one node, as text and unpacked; node-record/1 allows 4 MiB.
MAX_TEXT, MAX_BYTES = 4 << 20, 16 << 20
_WORDS_MAX = 200


@dataclass(frozen=True)
class Question:
    """``paths``: beside the run's own folder. ``ras``: HOST:PORT of NCCL's RAS, asked on the first node; or empty."""

    job: Job
    paths: Sequence[str] = ()
    ras: str = ""


#: Told how many nodes have answered.
Told = Callable[[int], None]
#: An answer a node of the job; never raises for a node that gives none.
Collection = dict[str, Answer]


class NodeReader(Protocol):
    def __call__(self, question: Question, told: Told) -> Collection:
        """Asks all nodes at the same time. Raises SlurmError, InputError where none can be asked at all."""


@dataclass
class _Parts:
    count: int
    texts: dict[int, str] = field(default_factory=dict)


class Collected:
    """Answers of a job's nodes, from lines in any order. Lines are hostile: the job's user could have printed them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._parts: dict[str, _Parts | None] = dict.fromkeys(nodes)
        self._answers: Collection = {}
        self.words = ""  # the first line that is no part of an answer: of srun, or of a reader that is not there

    @property
    def whole(self) -> int:
        return len(self._answers)

    def feed(self, line: str) -> None:
        words = line.split(" ")
        if len(words) == 4 and words[0] in self._parts and words[1].isdecimal() and words[2].isdecimal():
            self._add(words[0], int(words[1][:9]), int(words[2][:9]), words[3])
        elif line.strip() and not self.words:
            self.words = line.strip()[:_WORDS_MAX]

    def _add(self, node: str, number: int, count: int, text: str) -> None:
        parts = self._parts[node]
        if parts is None:
            parts = self._parts[node] = _Parts(count)
        if node in self._answers or count != parts.count or number >= count:
            return
        parts.texts[number] = text
        if len(parts.texts) * len(text) > MAX_TEXT:
            self._answers[node] = Answer(None, "its answer is too large")
        elif len(parts.texts) == count:
            self._answers[node] = _unpacked("".join(parts.texts[part] for part in range(count)))

    def answers(self, why: str) -> Collection:
        """``why``: of nodes that gave none."""
        return {node: self._answers.get(node) or Answer(None, why) for node in self._parts}


def _unpacked(text: str) -> Answer:
    try:
        packed, unpacker = base64.b64decode(text, validate=True), zlib.decompressobj()
        data = unpacker.decompress(packed, MAX_BYTES)
        if unpacker.unconsumed_tail:
            return Answer(None, "its answer is too large")
        value = json.loads(data)
        return Answer(cleaned(value), files=files_of(value))
    except (ValueError, RecursionError, zlib.error, binascii.Error) as error:
        return Answer(None, f"its answer can't be read: {str(error)[:_WORDS_MAX]}")


def files_of(value: Any) -> list[File]:
    """Of a reader's answer as it came, whose times are of the clock that ``now`` tells."""
    now, files = value.get("now"), value.get("files")
    if not isinstance(now, (int, float)) or not isinstance(files, list):
        return []
    return [_file(one, float(now)) for one in files if _is_file(one)]


def _is_file(one: Any) -> bool:
    known = isinstance(one, dict) and isinstance(one.get("path"), str)
    return known and all(type(one.get(key)) in (int, float) for key in ("size", "mtime"))


def _file(one: Any, now: float) -> File:
    return File(one["path"], int(one["size"]), float(one["mtime"]), max(0.0, now - float(one["mtime"])))
