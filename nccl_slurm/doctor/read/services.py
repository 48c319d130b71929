"""``systemctl show UNIT``, and the versions that programs print."""

from __future__ import annotations

import re

__all__ = ["is_absent", "is_active", "show", "version_in"]

_VERSION = re.compile(r"\b([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})\b")


def show(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}


def is_active(values: dict[str, str]) -> bool | None:
    """None: not told, or no such unit."""
    state = values.get("ActiveState")
    return None if state is None or is_absent(values) else state in ("active", "reloading")


def is_absent(values: dict[str, str]) -> bool:
    return values.get("LoadState") in ("not-found", "masked")


def version_in(text: str) -> str | None:
    """The first dotted number: ``Fabric Manager version is : 550.54.15``."""
    found = _VERSION.search(text)
    return found.group(1) if found else None
