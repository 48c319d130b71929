"""What is found on a host at the paths that matter: the answer of ``probe.sh``, read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

__all__ = ["Answer", "File", "merged", "read_answers"]


@dataclass(frozen=True)
class File:
    """``path`` as a glob gives it, ``real`` with links resolved. ``kind``: file, folder, other, dangling.

    ``filesystem`` is its type in the mount table. ``open_to`` is the first of the file and the folders above it that
    somebody besides root can change; empty: none.
    ``own_path``: its text looks at the name that it was started by.
    """

    path: str
    real: str = ""
    kind: str = "file"
    executable: bool = True
    digest: str = ""
    filesystem: str = ""
    open_to: str = ""
    own_path: bool = False

    @property
    def runs(self) -> bool:
        return self.kind == "file" and self.executable


@dataclass
class Answer:
    """Of one host. ``said`` holds the values of each other word; ``complete``: it came to its end."""

    node: str
    files: dict[str, tuple[File, ...]] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    said: dict[str, tuple[str, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    last: str = ""
    complete: bool = False

    def matches(self, pattern: str) -> tuple[File, ...]:
        return self.files.get(pattern, ())

    def yes(self, word: str) -> bool:
        return self.said.get(word, ("no",))[0] == "yes"


def read_answers(text: str, nonce: str) -> dict[str, Answer]:
    """By node. Lines that don't start with ``nonce`` are somebody else's."""
    found: dict[str, Answer] = {}
    for line in text.split("\n"):
        mark, *rest = line.rstrip("\r").split("\t")
        if mark == nonce and len(rest) >= 2:
            _take(found.setdefault(rest[0], Answer(rest[0])), rest[1], rest[2:])
    return found


def _take(answer: Answer, word: str, values: list[str]) -> None:
    answer.last = word
    if word == "end":
        answer.complete = True
    elif word == "absent":
        answer.absent += tuple(values)
    elif word == "conf" and len(values) == 2:
        answer.conf[values[0]] = values[1]
    elif word == "file" and len(values) == 9:
        answer.files[values[0]] = (*answer.matches(values[0]), _file(values))
    else:
        answer.said[word] = tuple(values)


def _file(values: list[str]) -> File:
    _, path, real, kind, executable, digest, filesystem, open_to, own_path = values
    return File(path, real, kind, executable == "yes", digest, filesystem, open_to, own_path == "yes")


def merged(answers: Mapping[str, Answer]) -> dict[str, tuple[File, ...]]:
    """Pattern → what it matches on any of the hosts; of files with the same path the first."""
    found: dict[str, dict[str, File]] = {}
    for answer in answers.values():
        for pattern, files in answer.files.items():
            for one in files:
                found.setdefault(pattern, {}).setdefault(one.path, one)
    return {pattern: tuple(files.values()) for pattern, files in found.items()}
