"""The lines around evidence, from the files in which it stands: which bytes, and what is made of them. Pure but for
`read_spans`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from nccl_slurm.parse.content import plain

__all__ = ["FILES_MAX", "Span", "read_spans", "shown", "spans_of"]

#: Bytes before and behind a line, and of one file in all. A watchdog's own lines are 300 to 2,000 bytes long.
AROUND = 6_000
FILE_MAX = 400_000
FILES_MAX = 64
_FIRST = 4096
_PRIVATE_KEY = re.compile(rb"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")


@dataclass(frozen=True)
class Span:
    start: int
    end: int


def spans_of(report: Mapping[str, Any]) -> dict[str, list[Span]]:
    """File, as the report names it → byte ranges around its facts, those that the verdict rests on first of all."""
    cited = _cited(report)
    facts = [
        fact for fact in report["facts"] if fact["file"] and fact["offset"] is not None and fact["role"] != "benign"
    ]
    found: dict[str, list[int]] = {}
    for fact in sorted(facts, key=lambda fact: (fact["id"] not in cited, fact["role"] != "cause")):
        found.setdefault(fact["file"], []).append(int(fact["offset"]))
    return {file: _merged(offsets) for file, offsets in list(found.items())[:FILES_MAX]}


def _cited(report: Mapping[str, Any]) -> set[str]:
    verdict = report["verdict"] or {}
    people = [*verdict.get("culprits", ()), *verdict.get("suspects", ()), *report["recommendations"]]
    return {one for person in people for one in person["evidence"]} | {
        one for step in report["inferences"] for one in step["from"]
    }


def _merged(offsets: Sequence[int]) -> list[Span]:
    """In the order of the file; of too many the first ones given stay."""
    chosen = offsets[: FILE_MAX // (2 * AROUND)]
    spans: list[Span] = []
    for start, end in sorted((max(0, at - AROUND), at + AROUND) for at in chosen):
        if spans and start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(end, spans[-1].end))
        else:
            spans.append(Span(start, end))
    return spans


def read_spans(file: BinaryIO, spans: Iterable[Span]) -> list[tuple[Span, bytes]]:
    """Raises OSError. Offsets of facts count unpacked text (see `parse.content`), so packed files have no spans."""
    at = file.fileno()
    if not plain(os.pread(at, _FIRST, 0)):
        raise OSError(0, "packed, or no UTF-8; report.json has its lines")
    pieces = (_whole_lines(span, os.pread(at, span.end - span.start, span.start)) for span in spans)
    return [(span, data) for span, data in pieces if data]


def _whole_lines(span: Span, data: bytes) -> tuple[Span, bytes]:
    """A secret is known by its name: behind a cut in the middle of its line, or of a key's block, it is a word like
    others. The lines of the evidence stay: they begin `AROUND` bytes behind the start, and as far before the end."""
    first, last = 0, len(data)
    if span.start:
        first = data.find(b"\n", 0, AROUND) + 1 or min(AROUND, last)
    if last == span.end - span.start:  # not the end of the file
        newline = data.rfind(b"\n", max(first, last - AROUND))
        last = newline + 1 if newline >= 0 else last
    key = _PRIVATE_KEY.search(data, first, last)
    if span.start and key is not None and key[1] == b"END" and key.end() <= AROUND:
        first = key.end()
    return Span(span.start + first, span.start + last), data[first:last]


def shown(name: str, found: Iterable[tuple[Span, bytes]]) -> str:
    """As text, each piece below a line that tells its place."""
    parts = [f"{name}\n"]
    for span, data in found:
        parts.append(f"\n--- bytes {span.start} to {span.end}\n{data.decode('utf-8', 'backslashreplace')}")
    return "".join(parts)
