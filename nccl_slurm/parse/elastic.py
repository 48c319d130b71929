"""torchelastic: the failure table of an agent, and error.json of a worker.

The table's ``time`` has whole seconds: from error.json, else the moment at which the agent looked. Its root cause is
the smallest such time on one node; ties go to the first of the list. So it is one observation, not a verdict.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping, NamedTuple

from nccl_slurm.parse.patterns import Row, Rows
from nccl_slurm.parse.prefix import MAX_RANK

__all__ = ["Block", "ErrorFile", "Table", "error_file", "refine"]

ROW = "elastic.table-"
_TERMINATED = -15
_STREAMS = 10_000
_STACK_READ = 1 << 16
_FROM_NONE = re.compile(r"^ {4}raise\b[^\n]{0,4000}\bfrom None[ \t]*\n(?: +[\^~ ]+\n)?\S", re.MULTILINE)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w{0,80})(?:: |:?\Z)")


class Block(NamedTuple):
    """One failed worker. ``number``, ``offset``, ``text``: of the block's line that names the rank."""

    data: dict[str, Any]
    number: int
    offset: int
    text: str

    @property
    def role(self) -> str:
        """-15 is what the agent itself sends to the workers that are left."""
        return "consequence" if self.data.get("exitcode") == _TERMINATED else "cause"

    @property
    def hint(self) -> str | None:
        return _hint(self.data)


class Table:
    """Puts the lines of failure tables together, one table a stream of a file."""

    def __init__(self) -> None:
        self._open: dict[str, Block] = {}
        self._root: set[str] = set()

    def feed(self, label: str, kind: str, data: dict[str, Any], number: int, offset: int, text: str) -> Block | None:
        """The block that this line ends, if it does. ``kind`` starts with ``elastic.table-``."""
        done = None
        if kind == ROW + "root":
            done = self._close(label)
            self._root.add(label)
            return done
        block = self._open.get(label)
        if block is not None and any(key in block.data for key in data):
            done, block = self._close(label), None
        if block is None:
            if len(self._open) >= _STREAMS:
                return done
            block = Block({}, number, offset, text)
        block.data.update(data)
        self._open[label] = block if "rank" not in data else block._replace(number=number, offset=offset, text=text)
        return done or (self._close(label) if kind == ROW + "traceback" else None)

    def rest(self) -> list[Block]:
        """Blocks that the end of the file cut off."""
        blocks = [self._close(label) for label in list(self._open)]
        return [block for block in blocks if block is not None]

    def _close(self, label: str) -> Block | None:
        block = self._open.pop(label, None)
        if block is None or not isinstance(block.data.get("rank"), int) or block.data["rank"] > MAX_RANK:
            return None
        block.data["root"] = int(label in self._root)
        self._root.discard(label)
        return block


def refine(row: Row, data: dict[str, Any], text: str, rows: Rows) -> tuple[str, str | None]:
    return row.role, row.hint or _hint(data)


class ErrorFile(NamedTuple):
    message: str  # "ValueError: loss is nan"
    time: float | None  # whole seconds
    data: dict[str, Any]


def error_file(raw: bytes) -> ErrorFile | None:
    """error.json: written for a Python exception under ``@record``, never for signals. None if it is something else."""
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    inner = value.get("message") if isinstance(value, dict) else None
    if isinstance(inner, str):
        inner = {"message": inner, "extraInfo": {"timestamp": value.get("timestamp")}}
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return None
    message = str(inner["message"])
    extra = inner.get("extraInfo")
    data: dict[str, Any] = {}
    match = _EXCEPTION.match(message)
    if match is not None:
        data["type"] = match.group(1)
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    if isinstance(stack, str) and _FROM_NONE.search(stack[:_STACK_READ]):
        data["from_none"] = 1
    if isinstance(inner.get("errorCode"), int):
        data["exitcode"] = inner["errorCode"]
    return ErrorFile(message[:1000], _seconds(extra.get("timestamp") if isinstance(extra, dict) else None), data)


def _hint(data: Mapping[str, Any]) -> str | None:
    code = data.get("exitcode")
    if not isinstance(code, int) or code == _TERMINATED:
        return None
    return "process-signal" if code < 0 else "rank-exception"


def _seconds(value: Any) -> float | None:
    text = str(value)
    return float(text) if re.match(r"\d{1,11}(?:\.\d{1,9})?\Z", text) else None
