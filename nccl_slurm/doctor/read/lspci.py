"""``lspci -vvv`` of bridges: which of them send peer-to-peer traffic through the root (Access Control Services).

Capabilities are shown to root alone: for others lspci says ``<access denied>``, which is not *no ACS*.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bridge", "Bridges", "read"]

_SLOT = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.{1,200})", re.IGNORECASE)
_CONTROL = re.compile(r"\s+ACSCtl:\s*(.{1,200})")
_REDIRECTS = ("ReqRedir+", "CmpltRedir+")


@dataclass(frozen=True)
class Bridge:
    """``redirects``: requests or completions between devices below it go up to the root complex."""

    slot: str
    name: str
    control: str

    @property
    def redirects(self) -> bool:
        return any(word in self.control for word in _REDIRECTS)

    @property
    def validates(self) -> bool:
        return "SrcValid+" in self.control


@dataclass(frozen=True)
class Bridges:
    """``denied``: at least one device hid its capabilities. ``bridges``: those with ACS control bits."""

    bridges: Sequence[Bridge]
    devices: int
    denied: bool


def read(text: str) -> Bridges:
    found: list[Bridge] = []
    slot, name, devices = "", "", 0
    for line in text.splitlines():
        head, control = _SLOT.match(line), _CONTROL.match(line)
        if head:
            slot, name, devices = head.group(1), head.group(2), devices + 1
        elif control and slot:
            found.append(Bridge(slot, name, control.group(1).strip()))
    return Bridges(found, devices, "<access denied>" in text)
