"""Where a Python traceback ends: its last line names the exception.

Several ranks write to one stream, so the state is kept per label. Lines of a traceback are indented or empty; the
first one that is not, and looks like ``Type: message``, is the last. Other text in between (a NCCL line of the same
process) is skipped. In torchelastic's failure table all of it is indented by two.
"""

from __future__ import annotations

import re

__all__ = ["Tracebacks"]

_START = "Traceback (most recent call last)"
_IN_TABLE = "traceback :"  # torchelastic's failure table quotes one, indented
#: A gathered one: torch.distributed.checkpoint tells all ranks of each failed one's, by its number in the group.
_OF_ANOTHER = re.compile(r"Traceback \(most recent call last\): \(RANK (?P<rank>\d{1,7})\)")
_LAST = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: (?P<message>.*)|:)?\s*\Z", re.DOTALL)
_HIDES = re.compile(r"\s*raise\b.{0,4000}\bfrom None\s*\Z")
_CHAIN = ("During handling of the above", "The above exception was")
#: ``  File "/srv/train.py", line 38, in step``; older Pythons print no function for the outermost one.
_FRAME = re.compile(
    r'\s{0,8}File "(?P<file>[^"\n]{1,300})", line (?P<line>\d{1,9})(?:, in (?P<function>[\w<>.]{1,80}))?\s*\Z'
)
#: Not the program's own code.
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python\d|\A<")
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_INTRUDERS = 50
_STREAMS = 10_000


class Tracebacks:
    """Feed it the lines from the first of a traceback on."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._table: set[str] = set()
        self._hides: set[str] = set()
        self._gathered: dict[str, int] = {}
        self._places: dict[str, dict[str, str]] = {}
        #: Of the traceback that `feed` ended last: ``raised_at``, the program's innermost line, and ``raised_in``, the
        #: function of torch.distributed that it was in; what no frame tells is not there.
        self.place: dict[str, str] = {}
        #: Whether the traceback that `feed` ended last was raised ``from None``: no line tells what for.
        self.from_none = False
        #: Which rank of a group raised it, where the printing rank passes on what it was told; else None.
        self.gathered_of: int | None = None

    def concerns(self, text: str) -> bool:
        """Whether there is anything to ask `covers` and `feed` for: of most lines there is not."""
        return bool(self._open) or _START in text

    def covers(self, label: str, text: str) -> bool:
        """Whether ``text`` is a source line or a frame inside an open traceback: program text, not a message."""
        inside = label in self._open and text.startswith(("    ", '  File "'))
        if inside and 'File "' in text[:16]:
            self._frame(label, text)
        if inside and text.strip(" ^~"):
            (self._hides.add if _HIDES.match(text) else self._hides.discard)(label)
        return inside

    def feed(self, label: str, text: str) -> tuple[str, str] | None:
        """(type, message) where ``text`` is the last line of an open traceback, else None."""
        if _START in text:
            if len(self._open) < _STREAMS:
                self._open[label] = 0
                self._places[label] = {}
                self._table.discard(label)
                self._hides.discard(label)
                self._gather(label, text)
                if text.lstrip().startswith(_IN_TABLE):
                    self._table.add(label)
            return None
        if label in self._table and text.startswith("  ") and text[2:3].strip():
            text = text[2:]
        if label not in self._open or not text.strip() or text[0] in " \t" or text.startswith(_CHAIN):
            return None
        match = _LAST.match(text[:4096])
        if match is None or not _is_type(match.group("type")):
            self._intruder(label)
            return None
        self._close(label)
        self.from_none = label in self._hides
        self.gathered_of = self._gathered.pop(label, None)
        self.place = self._places.pop(label, {})
        return match.group("type"), match.group("message") or ""

    def _gather(self, label: str, text: str) -> None:
        told = _OF_ANOTHER.search(text[:512])
        self._gathered.pop(label, None)
        if told is not None:
            self._gathered[label] = int(told["rank"])

    def _frame(self, label: str, text: str) -> None:
        found = _FRAME.match(text[:512])
        if found is None:
            return
        place, function = self._places.setdefault(label, {}), found["function"] or ""
        if found["file"].endswith(_COLLECTIVES):
            place["raised_in"] = function
        elif not _LIBRARY.search(found["file"]):
            where = f"{found['file']} line {found['line']}"
            self._places[label] = {"raised_at": f"{where} in {function}" if function.isidentifier() else where}

    def _intruder(self, label: str) -> None:
        self._open[label] += 1
        if self._open[label] > _INTRUDERS:
            self._close(label)

    def _close(self, label: str) -> None:
        del self._open[label]
        self._table.discard(label)


def _is_type(name: str) -> bool:
    """Exception types are written with a capital; ``srun: error: …`` and ``n1: …`` are other text."""
    return name.rpartition(".")[2][:1].isupper()
