"""Material that others wrote, as lines of a fenced block in Markdown that it can't leave.

What stands in a block may try to close it, to look like our own headings, or to tell its reader what to do. So every
line of it begins with a label of ours, no line holds three backticks in a row, and what hides or moves text is shown as
an escape. Markup that chat formats use for turns (``<|...|>``) is broken up: some pipelines read it inside of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from re import Match
from typing import Any

from nccl_slurm.parse.redact import redacted
from nccl_slurm.report.visible import visible

__all__ = ["FENCE", "block", "quoted", "source", "without_secrets"]

FENCE = "````"

#: What a line costs besides its text: thousands of empty lines are no evidence.
_LINE_COST = 8
_LABEL = re.compile(r"[a-z]{1,8}[0-9]{0,9}")
_TICKS = re.compile(r"`{3,}")
_TURNS = re.compile(r"<\||\|>")


def quoted(label: str, text: str, limit: int) -> list[str]:
    """``label| ...`` for each line of ``text``; cut to about ``limit`` characters, which the last line then says."""
    text = redacted(text)
    name, room = _name(label), limit
    lines = []
    for line in re.split(r"\r?\n", text[:limit]):
        shown = _harmless(line)[:room]
        lines.append(f"{name}| {shown}".rstrip())
        room -= len(shown) + _LINE_COST
        if room <= 0:
            lines.append(f"{name}@ cut here; {len(text)} characters in all")
            break
    return lines


def source(label: str, text: str, limit: int) -> str:
    """``label@ ...``: one line that tells where a quoted text comes from."""
    return f"{_name(label)}@ {_harmless(redacted(text)[:limit])[:limit]}".rstrip()


def block(lines: Iterable[str]) -> str:
    """``lines`` come from `quoted`, or hold nothing that others wrote."""
    return "\n".join((f"{FENCE}text", *lines, FENCE))


def without_secrets(value: Any) -> Any:
    """A report, or a part of one, with every text in it redacted, names of keys too."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted(str(key)): without_secrets(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(each) for each in value]
    return value


def _name(label: str) -> str:
    """Ids of facts come with a report that others may have written."""
    return label if _LABEL.fullmatch(label) else "x"


def _harmless(line: str) -> str:
    return _TURNS.sub(_escaped, _TICKS.sub(_escaped, visible(line)))


def _escaped(match: Match[str]) -> str:
    return "".join(f"\\x{ord(character):02x}" if character in "`|" else character for character in match.group())
