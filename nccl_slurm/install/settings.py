"""Text of capture.conf and of nccl-slurm.toml: values put into the shipped files, and what a site's own file says.

Both shipped files hold every key, commented out or not, once. A value that only a shell could work out is told as such.
"""

from __future__ import annotations

import re
import shlex
from typing import Iterator, Mapping

__all__ = ["UNTOLD", "fill_sh", "fill_toml", "sh_keys", "sh_value", "toml_keys", "toml_value"]

#: Stands for a value of capture.conf that hangs on variables or commands.
UNTOLD = "$"

_SH = re.compile(r"^(#?)(NCCL_SLURM_[A-Z_]+)=(.*)$")
_TOML = re.compile(r'^\s*(#?)([a-z_]+)( *= *)("[^"]*"|\x27[^\x27]*\x27|\[[^\]]*\]|[^\s#]+)(.*)$')
_SECTION = re.compile(r"^\s*\[([a-z_.]+)\]")


def fill_sh(template: str, values: Mapping[str, str]) -> str:
    """``values``: names with their prefix. A value that is the shipped default stays commented out."""
    lines = []
    for line in template.splitlines():
        found = _SH.match(line)
        wanted = values.get(found.group(2)) if found else None
        lines.append(line if not found or wanted in (None, found.group(3)) else f"{found.group(2)}={wanted}")
    return "\n".join(lines) + "\n"


def sh_keys(text: str) -> set[str]:
    return {found.group(2) for found in map(_SH.match, text.splitlines()) if found}


def sh_value(text: str, key: str) -> str | None:
    """The last one that is set; None where it is not set, UNTOLD where only a shell could tell."""
    value = None
    for found in map(_SH.match, text.splitlines()):
        if found and not found.group(1) and found.group(2) == key:
            value = _word(found.group(3))
    return value


def _word(text: str) -> str:
    if "$" in text or "`" in text:
        return UNTOLD
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return UNTOLD
    return words[0] if words else ""


def _toml_lines(text: str) -> Iterator[tuple[str, str, re.Match[str] | None]]:
    """``(line, "section.key", match)``; the name is empty where the line sets nothing."""
    section = ""
    for line in text.splitlines():
        begun = _SECTION.match(line)
        section = begun.group(1) if begun else section
        found = _TOML.match(line)
        yield line, f"{section}.{found.group(2)}" if found else "", found


def fill_toml(template: str, values: Mapping[str, str]) -> str:
    """``values``: ``paths.shared`` → its TOML text, quotes included."""
    lines = []
    for line, name, found in _toml_lines(template):
        if found and name in values and values[name] != found.group(4):
            line = f"{found.group(2)}{found.group(3)}{values[name]}{found.group(5)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def toml_keys(text: str) -> set[str]:
    return {name for _, name, found in _toml_lines(text) if found}


def toml_value(text: str, name: str) -> str | None:
    """As written, quotes included; None where it is not set."""
    value = None
    for _, each, found in _toml_lines(text):
        if found and each == name and not found.group(1):
            value = found.group(4)
    return value
