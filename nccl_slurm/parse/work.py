"""Lines by which a program tells that it goes on: steps, iterations, epochs, progress bars, with counts that rise.

They are looked for behind a failure only: an error that its rank outlived ended nothing. One line more proves nothing:
a progress bar is printed once more when its process ends, and so are summaries of the last step.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Iterable, NamedTuple, Sequence

from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.scan import LINE_LIMIT, Piece, text_of

__all__ = ["KIND", "RISES", "Step", "steps_after"]

KIND = "framework.step"
#: Lines with rising counts that show work.
RISES = 3
#: Of one file: taking labels off costs ten microseconds a line, and a large job has a file a rank.
_LINES = 256
_MAY = re.compile(rb"(?i)step|iter|epoch|batch|update|\d/\d")
_COUNTED = re.compile(
    r"(?i)(?P<word>step|iter|iteration|epoch|batch|updates?)s?\b[\"' :=#\[(]{0,16}(?P<count>\d{1,12}(?:\.\d{1,9})?)"
    r"|(?P<of>\d{1,12})/ {0,12}\d{1,12} \["
)


class Step(NamedTuple):
    """``offset``: of its line in the file. ``newlines``: between the start that was given and the line."""

    offset: int
    newlines: int
    text: str
    word: str
    done: float


class _Run(NamedTuple):
    """Last lines of one word with rising counts."""

    steps: tuple[Step, ...]

    def on(self, step: Step) -> _Run:
        """A count that falls begins anew; one that stays adds nothing."""
        if self.steps and step.done == self.steps[-1].done:
            return self
        risen = self.steps if self.steps and step.done > self.steps[-1].done else ()
        return _Run((*risen, step)[-RISES:])


def steps_after(tail: Piece, start: int) -> list[Step]:
    """Of each rank that a label tells (of lines without one too) the last `RISES` lines with rising counts of one word,
    behind the offset ``start`` of a file and inside its ``tail``; of a rank with fewer none."""
    runs: dict[tuple[int | None, str], _Run] = {}
    done: dict[int | None, Sequence[Step]] = {}
    for at, newlines, line in _lines(tail, start):
        text = text_of(line[:LINE_LIMIT]).rstrip("\r\n")
        prefix = strip(text)
        for word, count in _counts(prefix.text):
            run = runs.get((prefix.rank, word), _Run(())).on(Step(at, newlines, text, word, count))
            runs[prefix.rank, word] = run
            if len(run.steps) == RISES:
                done[prefix.rank] = run.steps
    return sorted(step for steps in done.values() for step in steps)


def _lines(tail: Piece, start: int) -> Iterable[tuple[int, int, bytes]]:
    """(offset, newlines before it, line) of the last ones that may count something."""
    raw = tail.raw[max(0, start - tail.offset) :]
    found: deque[tuple[int, int, bytes]] = deque(maxlen=_LINES)
    at, newlines = max(start, tail.offset), 0
    for line in raw.splitlines(keepends=True) if _MAY.search(raw) else ():
        if _MAY.search(line):
            found.append((at, newlines, line))
        at += len(line)
        newlines += line.endswith(b"\n")
    return found


def _counts(text: str) -> list[tuple[str, float]]:
    found = _COUNTED.finditer(text[:LINE_LIMIT])
    return [((match["word"] or "bar").lower(), float(match["count"] or match["of"])) for match in found][:4]
