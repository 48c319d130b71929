"""Where literals stand in large files: ripgrep, GNU grep, or Python's own search over blocks. All give the same lines.

Each program gets descriptors that are open already (``/dev/fd/N``), never a path: what was checked is what is read. One
process serves many files, since starting one costs as much as searching megabytes. The programs print the place of a
match and not its line, so that lines of any length cost nothing; what holds the match is read by who wants it.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO, Callable, Iterable, Iterator, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    import subprocess

__all__ = ["GREP", "Hit", "Program", "Search", "fastest", "grep"]

#: (bytes up to a literal, number of its line: 1-based, newlines are counted). A plain tuple: there are hundreds in each
#: file of NCCL's INFO, and a class of its own costs five times as much as two numbers.
Hit = Tuple[int, int]

BLOCK = 1 << 20
#: A program holds one line of a file; where a line is larger the blocks take over.
_MEMORY = 512 << 20
#: Of the program's output: being woken for each of its writes costs more than reading them.
_CHUNK = 1 << 18
_AT_ONCE = 4096
#: One hit, and those after it in the file that are of the same literal.
_TOLD = re.compile(rb"([^\0\n]+)\0(\d{1,18}):(\d{1,18}):([^\n]*)\n((?:\1\0\d{1,18}:\d{1,18}:\4\n)*)")
_MORE = re.compile(rb"\0(\d{1,18}):(\d{1,18}):")
#: So many bytes of such hits are worth the question whether they are wanted.
_MANY = 512
_PATH = itemgetter(0)
_GREP = ("/usr/bin/grep", "/bin/grep")


class Program(NamedTuple):
    """Prints ``path NUL line number : offset : match`` of every match. ``path`` of the program, and its arguments."""

    path: str
    arguments: tuple[str, ...]


GREP = ("-aFnbo", "-H", "-Z")
#: No configuration, no UTF-16 guessed, no mapped file that somebody cuts meanwhile, one thread: the order is kept.
_RIPGREP = ("--no-config", "-aFnbo", "-H", "-0", "--no-heading", "--color=never", "-Enone", "--no-mmap", "-j1")


def grep() -> Program | None:
    """GNU grep at its fixed places: what runs with a job user's rights takes nothing from PATH."""
    path = next((one for one in _GREP if os.access(one, os.X_OK)), None)
    return None if path is None else Program(path, GREP)


def fastest() -> Program | None:
    """ripgrep beside this Python (the extra ``fast``) or in PATH, else grep. For commands that a person runs."""
    import shutil  # not on nodes: it loads all kinds of archives

    beside = os.path.join(os.path.dirname(sys.executable or ""), "rg")
    path = beside if os.access(beside, os.X_OK) else shutil.which("rg")
    return grep() if path is None else Program(path, _RIPGREP)


class Search:
    """Iterate ``of(0)``, ``of(1)`` … in this order: lists of hits, ascending; what is left of earlier files is dropped.

    ``sizes``: bytes of each file that count; it may have grown. ``problem`` is why the program was given up: blocks did
    the rest then, and nothing is missing. Close it. Reads by position (the file's own does not move).
    """

    def __init__(
        self, files: Sequence[BinaryIO], sizes: Sequence[int], literals: Sequence[bytes], program: Program | None
    ) -> None:
        self.problem: str | None = None
        self._files, self._sizes, self._literals = files, sizes, literals
        self._descriptors = [file.fileno() for file in files]
        self._child = self._start(program) if program is not None and files else None
        self._next: tuple[int, list[Hit]] | None = None
        self._passed = 0
        self._told = self._told_hits()

    def of(self, index: int) -> Iterator[list[Hit]]:
        """None of the lists is empty."""
        self._passed = 0
        last, size = -1, self._sizes[index]
        while self._child is not None and self._look() and self._next is not None and self._next[0] <= index:
            (found, hits), self._next = self._next, None
            if found != index:
                continue
            if not (last < hits[0][0] and hits[-1][0] < size):
                hits = [hit for hit in hits if last < hit[0] < size]
            if hits:
                last = hits[-1][0]
                yield hits
        if self._child is None:
            for hits in blocks(self.reader(index), self._literals):
                hits = [hit for hit in hits if last < hit[0]]
                if hits:
                    yield hits

    def pass_by(self, offset: int) -> None:
        """Hits before ``offset`` are not wanted any more, of the file that is asked for; some are told all the same."""
        self._passed = offset

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._reap(child)

    def reader(self, index: int) -> Callable[[int, int], bytes]:
        """(size, offset) → bytes, none behind the size that counts."""
        descriptor, end = self._descriptors[index], self._sizes[index]
        return lambda size, offset: os.pread(descriptor, max(0, min(size, end - offset)), offset)

    # ---- the program's output

    def _start(self, program: Program) -> subprocess.Popen[bytes] | None:
        import subprocess  # small logs need none

        command = [program.path, *program.arguments]
        for literal in self._literals:
            command += ["-e", literal.decode()]
        command += ["--", *(f"/dev/fd/{descriptor}" for descriptor in self._descriptors)]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C"},
                pass_fds=self._descriptors,
            )
        except (OSError, ValueError) as error:
            self.problem = f"{program.path}: {error}"
            return None
        with suppress(OSError, ValueError):  # it has ended, or a lower limit is set
            resource.prlimit(child.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        return child

    def _look(self) -> bool:
        """Whether the program has told one more; else it has ended. Ended badly: the blocks go on from there."""
        if self._next is None:
            self._next = next(self._told, None)
        if self._next is not None:
            return True
        child = self._child
        status = None if child is None else self._reap(child)
        if status not in (0, 1):
            self._child, self.problem = None, f"the search program ended with status {status}"
        return False

    def _told_hits(self) -> Iterator[tuple[int, list[Hit]]]:
        if self._child is None or self._child.stdout is None:
            return
        places = {f"/dev/fd/{descriptor}".encode(): index for index, descriptor in enumerate(self._descriptors)}
        left = b""
        while True:
            chunk = self._child.stdout.read(_CHUNK)
            if not chunk:
                return
            left += chunk
            cut = left.rfind(b"\n") + 1
            for path, told in groupby(_TOLD.findall(left[:cut]), _PATH):
                index = places.get(path)
                if index is not None:
                    yield from ((index, hits) for hits in self._hits(told))
            left = left[cut:]

    def _hits(self, told: Iterable[tuple[bytes, ...]]) -> Iterator[list[Hit]]:
        """Of one file. What is passed by is not even made numbers of: most hits are lines that are only counted."""
        hits: list[Hit] = []
        for _, number, offset, _, more in told:
            hits.append((int(offset), int(number)))
            if len(more) >= _MANY:
                yield hits
                hits = []
                if int(more[more.rindex(b"\0") :].split(b":", 2)[1]) < self._passed:
                    continue
            if more:
                hits += [(int(offset), int(number)) for number, offset in _MORE.findall(more)]
        if hits:
            yield hits

    @staticmethod
    def _reap(child: subprocess.Popen[bytes]) -> int:
        if child.stdout is not None:
            child.stdout.close()
        return child.wait()


def blocks(read: Callable[[int, int], bytes], literals: Sequence[bytes]) -> Iterator[list[Hit]]:
    """The same without a program: whole lines of about 1 MiB, each literal by itself (`bytes.find` skips by the length
    of what it looks for; `mmap.find` is slow before Python 3.11)."""
    number, offset, left = 1, 0, b""
    overlap = max(map(len, literals)) - 1
    while True:
        chunk = read(BLOCK, offset + len(left))
        block = left + chunk
        cut = block.rfind(b"\n") + 1 if chunk else len(block)
        if not cut and len(block) > 2 * BLOCK:  # no end of a line in sight
            cut = len(block) - overlap
        at, hits = 0, []
        for place in sorted(_places(block, literals, cut)):
            number += block.count(b"\n", at, place)
            at = place
            hits.append((offset + place, number))
            if len(hits) >= _AT_ONCE:
                yield hits
                hits = []
        if hits:
            yield hits
        number += block.count(b"\n", at, cut)
        offset += cut
        left = block[cut:]
        if not chunk:
            return


def _places(block: bytes, literals: Sequence[bytes], cut: int) -> Iterator[int]:
    """Places before ``cut``; what is found there may reach over it."""
    for literal in literals:
        end = cut + len(literal) - 1
        at = block.find(literal, 0, end)
        while at >= 0:
            yield at
            at = block.find(literal, at + len(literal), end)
