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
_BUSES = re.compile(r"\s+Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
_BRIDGE = "PCI bridge"
_REDIRECTS = ("ReqRedir+", "CmpltRedir+")


@dataclass(frozen=True)
class Bridge:
    """``redirects``: requests or completions between devices below it go up to the root complex. ``buses``: the first
    and the last below it; None: not told."""

    slot: str
    name: str
    control: str
    buses: tuple[int, int] | None = None

    def is_above(self, slot: str) -> bool:
        """True also where its buses are not told. ``slot``: ``0000:a1:00.0``."""
        if self.buses is None:
            return True
        domain, bus, _ = slot.split(":")
        mine = self.slot.split(":")[0] if self.slot.count(":") > 1 else "0"
        first, last = self.buses
        return int(domain, 16) == int(mine, 16) and first <= int(bus, 16) <= last

    @property
    def redirects(self) -> bool:
        return any(word in self.control for word in _REDIRECTS)

    @property
    def validates(self) -> bool:
        return "SrcValid+" in self.control


@dataclass(frozen=True)
class Bridges:
    """``denied``: at least one device hid its capabilities. ``bridges``: those with ACS control bits; a card's are
    between its own functions alone."""

    bridges: Sequence[Bridge]
    devices: int
    denied: bool


def read(text: str) -> Bridges:
    found: list[Bridge] = []
    slot, name, devices = "", "", 0
    below: tuple[int, int] | None = None
    for line in text.splitlines():
        head, buses, control = _SLOT.match(line), _BUSES.match(line), _CONTROL.match(line)
        if head:
            slot, name, devices, below = head.group(1), head.group(2), devices + 1, None
        elif buses:
            below = (int(buses.group(1), 16), int(buses.group(2), 16))
        elif control and (below or name.startswith(_BRIDGE)):
            found.append(Bridge(slot, name, control.group(1).strip(), below))
    return Bridges(found, devices, "<access denied>" in text)
