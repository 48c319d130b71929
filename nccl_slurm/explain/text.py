"""Entries for people: what it means, how it is proven, what to do, where this comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from nccl_slurm.doctor.guide import SUGGESTED
from nccl_slurm.explain.entry import Entry
from nccl_slurm.report.visible import visible

__all__ = ["render", "table"]

_WIDTH = 100
_INDENT = "  "
_MEANS_MAX = 90
#: Related words printed; a class may have dozens of rows.
_RELATED_MAX = 24


def render(entries: Sequence[Entry], actions: Mapping[str, str]) -> str:
    """``actions``: meaning of each action word. Ends in a newline."""
    return "\n".join(_entry(entry, actions) for entry in entries)


def table(entries: Sequence[Entry]) -> str:
    """One line a word."""
    lines = [(entry.name, entry.kind, entry.action or entry.role or "", _short(entry)) for entry in entries]
    shown = [[visible(cell) for cell in line] for line in lines]
    return tabulate(shown, headers=("word", "kind", "action, role", "means"), tablefmt="plain", disable_numparse=True)


def _short(entry: Entry) -> str:
    text = entry.words[0] if entry.words else entry.means
    return visible(text, _MEANS_MAX)


def _entry(entry: Entry, actions: Mapping[str, str]) -> str:
    parts = [visible(f"{entry.name} ({entry.kind}{_origin(entry)})"), _section("What it means", entry.means)]
    parts += _told(("Symptom", entry.symptom), ("Looks like", entry.example))
    parts += _told(("How it is proven", entry.proof), ("Cause", entry.cause))
    parts.append(_steps(entry, actions))
    if entry.commands:
        parts.append("\n".join([SUGGESTED, *(f"{_INDENT}{visible(command)}" for command in entry.commands)]))
    parts += _told(("How to verify", entry.verify), ("Blast radius", entry.blast_radius), ("Source", entry.source))
    if entry.related:
        more = len(entry.related) - _RELATED_MAX
        names = [*entry.related[:_RELATED_MAX], *([f"and {more} more"] if more > 0 else [])]
        parts.append(_section("See also", ", ".join(names)))
    return "\n".join(part for part in parts if part) + "\n"


def _told(*parts: tuple[str, str | None]) -> list[str]:
    return [_section(title, text) for title, text in parts if text]


def _origin(entry: Entry) -> str:
    versions = f" {entry.versions}" if entry.versions else ""
    parts = [f"{entry.producer}{versions}" if entry.producer else "", entry.role or ""]
    return "".join(f", {part}" for part in parts if part)


def _steps(entry: Entry, actions: Mapping[str, str]) -> str:
    action = f"{entry.action}: {actions.get(entry.action, '')}" if entry.action and entry.kind != "action" else ""
    lines = [_wrapped(f"{number}. {step}", hanging=3) for number, step in enumerate(entry.steps, start=1)]
    body = "\n".join([*([_wrapped(action)] if action else []), *lines])
    return f"What to do\n{body}" if body else ""


def _section(title: str, text: str) -> str:
    return f"{title}\n{_wrapped(text)}"


def _wrapped(text: str, *, hanging: int = 0) -> str:
    further = _INDENT + " " * hanging
    return textwrap.fill(
        visible(text), _WIDTH, initial_indent=_INDENT, subsequent_indent=further, break_on_hyphens=False
    )
