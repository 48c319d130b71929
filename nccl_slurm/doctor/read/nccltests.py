"""Output of nccl-tests (``all_reduce_perf`` and the others): bandwidth by message size, with its nodes.

Its table has columns of two passes (out of place, in place); either may be missing. Launchers put labels before lines
(``[1,0]<stdout>:`` of mpirun, ``0: `` of srun -l). A file may hold several runs, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Line", "Run", "read"]

_LABEL = re.compile(r"(?:\[[0-9]{1,4},[0-9]{1,7}\]<std(?:out|err)>: ?|[0-9]{1,7}: )")
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\b.*?\bPid\s+[0-9]+ on\s+(\S{1,255})\s+device\s+([0-9]{1,3})"
    r"(?:\s+\[[^\]]{1,20}\]\s+(\S.{0,59}))?"
)
#: Each run begins with its parameters; newer releases have their version and the test's name around them.
_HEAD = re.compile(r"^\s*# (?:nccl-tests version |nThread |Collective test starting: )")
_BEGIN = re.compile(r"^\s*# (?:nccl-tests version .* )?nThread ")
_STARTING = re.compile(r"# Collective test starting: (\S{1,60})")
_PROGRAM = re.compile(r"^(?!\s*# Collective test concluded).*?\b([a-z_]+_perf)(?:_mpi)?\b")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: ([0-9.]{1,20})")
_WRONG = re.compile(r"# Out of bounds values : ([0-9]{1,12})")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,10})?\Z")
_MAX_LINES = 1000


@dataclass(frozen=True)
class Line:
    """``size`` bytes; ``algbw``, ``busbw`` in GB/s of 10^9 bytes, the better of out of place and in place."""

    size: int
    algbw: float
    busbw: float


@dataclass(frozen=True)
class Run:
    """``hosts`` in order of ranks, each once; empty where the head is missing. ``wrong``: values out of bounds, None
    where it was not checked. ``whole``: the last line was printed, so it came to its end. ``gpu``: kind of its GPUs,
    empty where it is not told."""

    test: str
    hosts: Sequence[str]
    ranks: int
    lines: Sequence[Line]
    average: float | None
    wrong: int | None
    gpu: str = ""

    @property
    def whole(self) -> bool:
        return self.average is not None

    @property
    def largest(self) -> Line | None:
        return max(self.lines, key=lambda line: line.size, default=None)

    def at(self, size: int) -> Line | None:
        return next((line for line in self.lines if line.size == size), None)


def read(text: str) -> list[Run]:
    """In order. Empty: not the output of such a test."""
    lines = [_LABEL.sub("", line, count=1) for line in text.splitlines()]
    parts = [part for part in _parts(lines) if any(map(_tells, part))]
    ends = sum(1 for line in lines if _AVERAGE.search(line))
    if ends >= sum(1 for line in lines if _BEGIN.search(line)):  # heads that stand together are of runs side by side
        parts = [part for part in parts if any(_tells(line) for line in part if not _BEGIN.search(line))]
    return [_run(part) for part in parts]


def _parts(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each run, with those before it: old releases are named by what started them alone."""
    part: list[str] = []
    begun = ended = False
    for line in lines:
        head = bool(_HEAD.search(line))
        if ended or (begun and head and not _is_of_the_head(line, part)):
            yield part
            part, begun, ended = [], False, False
        part.append(line)
        begun = begun or bool(_BEGIN.search(line))
        ended = bool(_AVERAGE.search(line))
    yield part


def _is_of_the_head(line: str, part: Sequence[str]) -> bool:
    """Whether this line goes on with the head that is the end of ``part``."""
    return bool(_HEAD.search(part[-1])) and not _BEGIN.search(line)


def _tells(line: str) -> bool:
    return any(rule.search(line) for rule in (_BEGIN, _RANK, _AVERAGE)) or _line(line) is not None


def _run(lines: Sequence[str]) -> Run:
    table = [line for line in map(_line, lines) if line is not None][:_MAX_LINES]
    ranks = {int(one.group(1)): one.group(2) for one in map(_RANK.search, lines) if one}
    gpus = sorted({(one.group(4) or "").strip() for one in map(_RANK.search, lines) if one})
    averages = [_decimal(one.group(1)) for one in map(_AVERAGE.search, lines) if one]
    average = averages[0] if averages else None
    wrong = next((int(one.group(1)) for one in map(_WRONG.search, lines) if one), None)
    hosts = tuple(dict.fromkeys(ranks[number] for number in sorted(ranks)))
    return Run(_test(lines), hosts, len(ranks), tuple(table), average, wrong, ", ".join(filter(None, gpus)))


def _test(lines: Sequence[str]) -> str:
    """By what stands nearest before the table: lines of the run before may still be above."""
    found = next(filter(None, map(_STARTING.search, lines)), None) or _named(lines)
    name = found.group(1) if found else "unknown"
    return name.removesuffix("_mpi").removesuffix("_perf")


def _named(lines: Sequence[str]) -> re.Match[str] | None:
    begin = next((number for number, line in enumerate(lines) if _BEGIN.search(line)), len(lines))
    told = [found for found in map(_PROGRAM.search, lines[:begin]) if found]
    return told[-1] if told else next(filter(None, map(_PROGRAM.search, lines[begin:])), None)


def _line(text: str) -> Line | None:
    """``size count type [redop] [root] time algbw busbw #wrong [time algbw busbw #wrong]``."""
    words = text.split()
    if len(words) < 6 or not (words[0].isascii() and words[0].isdigit() and words[1].isdigit() and len(words[0]) < 16):
        return None
    if not words[2][:1].isalpha():
        return None
    rest = words[3:]
    while rest and not _NUMBER.match(rest[0]) and rest[0] != "-1":
        rest = rest[1:]
    groups = _groups(rest[len(rest) % 4 :] if len(rest) % 4 != 3 else rest)
    if not groups:
        return None
    algbw, busbw = max(groups, key=lambda one: one[1])
    return Line(int(words[0]), algbw, busbw)


def _groups(words: Sequence[str]) -> list[tuple[float, float]]:
    """What is left of the root is cut off before: groups of four, or one of three without the count of errors."""
    found = []
    for start in range(0, len(words) - 2, 4):
        algbw, busbw = _decimal(words[start + 1]), _decimal(words[start + 2])
        if _decimal(words[start]) is not None and algbw is not None and busbw is not None:
            found.append((algbw, busbw))
    return found


def _decimal(word: str) -> float | None:
    return float(word) if _NUMBER.match(word) else None
