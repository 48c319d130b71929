"""The job's own output (stdout, stderr, torchrun's log folder), read with the rights of its user.

The reading is done by the node side's ``read-user`` in a child process: root never opens a path that a user chose. What
comes back is as hostile as the logs and is only ever text and numbers of trust ``job``.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import nccl_slurm
from nccl_slurm.capture.command import run
from nccl_slurm.capture.facts import clean_facts, clean_gaps, clean_ranks
from nccl_slurm.info.runs import ENDS
from nccl_slurm.model import Fact, Gap, Parsed, Rank

__all__ = ["OutputReader", "Wanted", "of_this_run", "parsed_from_json"]

#: Clocks of nodes and controller, and of file servers, differ.
SLACK_S = 60.0
MAX_LEFT = 8
#: The child's answer is cut off here; its own caps on facts keep it far below.
_MAX_ANSWER = 64 * 1024 * 1024


class Wanted(NamedTuple):
    """The output of a run that began at ``since``."""

    paths: Sequence[str]
    since: float


@dataclass(frozen=True)
class OutputReader:
    """``patterns`` is the compiled JSON of pattern rows; ``limit_s`` bounds the whole reading.

    ``left``: pids of readers that could not be ended. While `MAX_LEFT` of them hang none is added.
    """

    patterns: str
    limit_s: float
    python: str = sys.executable
    left: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, paths: Sequence[str], uid: int, since: float) -> Parsed:
        """As `read_each`, of one run."""
        (found,) = self.read_each([Wanted(paths, since)], uid)
        return found or _nothing("not read")

    def read_each(self, wanted: Sequence[Wanted], uid: int) -> list[Parsed | None]:
        """What belongs to each run, by one child for all of them. Never raises: what could not be read is a gap. None:
        the child ended at one before it, or took too long for those, and never for the first."""
        told = [one for one in wanted if one.paths]
        answers = iter(self._answers(told, uid) if told else ())
        return [next(answers) if one.paths else _nothing("Slurm told no path of it") for one in wanted]

    def read_now(self, wanted: Wanted, uid: int) -> tuple[Parsed, list[Any]]:
        """As `read`, with the files that were read, as the reader tells them: of a job that still runs."""
        if not wanted.paths:
            return _nothing("Slurm told no path of it"), []
        try:
            lines, why = self._lines([wanted], uid)
        except _Refused as error:
            return _nothing(str(error)), []
        if not lines:
            return _nothing(f"could not be read: {why[:200]}"), []
        return _parsed(lines[0], wanted.since), _files(lines[0]) or []

    def files_each(self, wanted: Sequence[Wanted], uid: int) -> list[list[Any] | None]:
        """The files of each run as they are now, none of them opened: some milliseconds a run. None: not told."""
        lines: list[str] = []
        with suppress(_Refused):
            lines, _ = self._lines(wanted, uid, "--only-files")
        found = [_files(line) for line in lines]
        return found + [None] * (len(wanted) - len(found))

    def _answers(self, wanted: Sequence[Wanted], uid: int) -> list[Parsed | None]:
        try:
            lines, why = self._lines(wanted, uid)
        except _Refused as error:
            return [_nothing(str(error))] * len(wanted)
        read: list[Parsed | None] = [_parsed(line, one.since) for line, one in zip(lines, wanted, strict=False)]
        if not read:
            read = [_nothing(f"could not be read: {why[:200]}")]
        return read + [None] * (len(wanted) - len(read))

    def _lines(self, wanted: Sequence[Wanted], uid: int, *options: str) -> tuple[list[str], str]:
        if self._hanging() >= MAX_LEFT:
            raise _Refused(f"not read: {MAX_LEFT} earlier readers hang in a file system")
        try:
            command = self._command([one.paths for one in wanted], uid, options)
        except KeyError:
            raise _Refused(f"uid {uid} is not known on this host") from None
        return self._ask(command, len(wanted))

    def _hanging(self) -> int:
        """From several threads. Those that ended are let go of before the system gives their pid to others."""
        with self.lock:
            self.left[:] = [pid for pid in self.left if _hangs(pid)]
            return len(self.left)

    def _command(self, groups: Sequence[Sequence[str]], uid: int, options: Sequence[str] = ()) -> list[str]:
        """An empty path begins the next answer."""
        user = pwd.getpwuid(uid)
        script = Path(nccl_slurm.__file__).parent / "capture" / "main.py"
        who = ["--uid", str(uid), "--gid", str(user.pw_gid), "--user", user.pw_name]
        paths = chain.from_iterable(("", *group) for group in groups)
        return [self.python, "-I", "-S", str(script), "read-user", *options, *who, "--", *paths]

    def _ask(self, command: Sequence[str], count: int) -> tuple[list[str], str]:
        """The lines that are whole, ``count`` at most, and why there are no more. A child that can't be killed (a file
        system that hangs) is left behind, and counted."""
        answer = run(command, limit_s=self.limit_s, limit_bytes=_MAX_ANSWER, env={"NCCL_SLURM_PATTERNS": self.patterns})
        if answer.left is not None:
            with self.lock:
                self.left.append(answer.left)
        lines = answer.text.split("\n")
        if answer.why or answer.cut:
            del lines[-1]
        whole = [line for line in lines if line.startswith("{")]
        return whole[:count], answer.why or ("the answer is too large" if answer.cut else "no answer")


class _Refused(Exception):
    """No reader is started; ``str()`` is the gap's text."""


def _files(line: str) -> list[Any] | None:
    try:
        files: list[Any] = cleaned(json.loads(line))["files"]
    except (ValueError, RecursionError):
        return None
    return files


def _nothing(why: str) -> Parsed:
    return Parsed(gaps=(Gap("job output", why),))


def _parsed(line: str, since: float) -> Parsed:
    try:
        return parsed_from_json(of_this_run(cleaned(json.loads(line)), since - SLACK_S))
    except (ValueError, RecursionError) as error:
        return _nothing(f"could not be read: {str(error)[:200]}")


def _hangs(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def cleaned(answer: Any) -> dict[str, Any]:
    """Forced into shape, and believed in nothing else: the child that answers runs as the user. Raises ValueError."""
    if not isinstance(answer, dict):
        raise ValueError("the reader's answer is no object")
    gaps = clean_gaps(_list(answer.get("gaps")))
    return {
        "facts": clean_facts(answer.get("facts"), "job", gaps),
        "ranks": clean_ranks(answer.get("ranks")),
        "gaps": gaps,
        "files": [file for file in _list(answer.get("files")) if _is_file(file)],
        **{key: _count(answer.get(key)) for key in ("world_size", "bytes_read", "lines_unknown")},
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_file(value: Any) -> bool:
    known = isinstance(value, dict) and isinstance(value.get("path"), str)
    return known and isinstance(value.get("mtime"), (int, float))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def of_this_run(answer: Any, since: float) -> Any:
    """Without files that nobody wrote to since then, and without lines stamped before or above Slurm's word that a run
    was ended before: log folders are used again, and files are appended to, so they hold the words of earlier runs and
    other jobs."""
    old = {one["path"] for one in answer.get("files", ()) if one["mtime"] < since}
    ended = _ends_before(answer["facts"], since)
    facts = [fact for fact in answer["facts"] if fact["file"] not in old and not _is_older(fact, since, ended)]
    ranks = [rank for rank in answer["ranks"] if not rank["files"] or not old.issuperset(rank["files"])]
    gaps = [{"source": path[:200], "why": "older than this run; not read for it"} for path in sorted(old)[:20]]
    if len(facts) < len(answer["facts"]):
        gaps.append({"source": "job output", "why": "lines from before this run are left out"})
    return {**answer, "facts": facts, "ranks": ranks, "gaps": [*answer["gaps"], *gaps]}


def _ends_before(facts: Sequence[Any], since: float) -> dict[str | None, int]:
    """File → the last line by which Slurm told the end of an earlier run."""
    ends = [fact for fact in facts if fact["kind"] in ENDS and fact["line"] and _stamped_before(fact, since)]
    return {fact["file"]: fact["line"] for fact in sorted(ends, key=lambda fact: fact["line"])}


def _is_older(fact: Any, since: float, ended: Mapping[str | None, int]) -> bool:
    above = fact["line"] is not None and fact["line"] <= ended.get(fact["file"], 0)
    return above or _stamped_before(fact, since)


def _stamped_before(fact: Any, since: float) -> bool:
    return fact["time"] is not None and fact["time"] + (fact["uncertainty_s"] or 0.0) < since


def parsed_from_json(value: Any) -> Parsed:
    """``value`` was `cleaned` (and so is what the store keeps of it)."""
    return Parsed(
        facts=[Fact.from_json(fact) for fact in value["facts"]],
        ranks=[Rank.from_json(rank) for rank in value["ranks"]],
        gaps=[Gap(**gap) for gap in value["gaps"]],
        world_size=value["world_size"],
        bytes_read=value.get("bytes_read") or 0,
        lines_unknown=value.get("lines_unknown") or 0,
    )
