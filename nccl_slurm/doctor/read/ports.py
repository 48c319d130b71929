"""RDMA devices below /sys/class/infiniband, by their files: cards of EFA, ports of InfiniBand and RoCE.

A card is one device there. ``fi_info`` lists each EFA card two or three times (rdm, dgrm, efa-direct), so its lines are
no count of cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Device", "Port", "devices", "named"]

_PATH = re.compile(r".*/infiniband/([^/]{1,60})/(.+)\Z")
_PORT = re.compile(r"ports/([0-9]{1,3})/(?:(?:hw_)?counters/)?([a-z_0-9]{1,60})\Z")
_COUNTER = re.compile(r"(?:ports/[0-9]{1,3}/)?(?:hw_)?counters/[A-Za-z_0-9]{1,60}\Z")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec")
_UEVENT = re.compile(r"^(PCI_ID|PCI_SUBSYS_ID|PCI_SLOT_NAME)=([0-9A-Fa-f:.]{1,40})$", re.MULTILINE)


@dataclass(frozen=True)
class Port:
    number: int
    state: str | None = None
    physical: str | None = None
    rate: str | None = None
    layer: str | None = None

    @property
    def active(self) -> bool:
        return self.state in ("ACTIVE", "ACTIVE_DEFER")

    @property
    def gigabits(self) -> float:
        """A second; 0.0: not told. ``400 Gb/sec (4X NDR)``; a port that is down tells its lowest."""
        found = _RATE.match(self.rate or "")
        return float(found.group(1)) if found else 0.0


@dataclass(frozen=True)
class Device:
    """``driver``: of its PCI function (efa, mlx5_core). ``p2p``: who gives EFA the GPUs' pages, empty for nobody.

    ``counters``: by their file below the device (``ports/1/hw_counters/rx_drops``). ``model``: PCI ids of the card and
    of its board, empty where they are not told, as ``slot`` (``0000:60:00.0``).
    """

    name: str
    driver: str | None
    ports: tuple[Port, ...] = ()
    firmware: str | None = None
    p2p: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    slot: str = ""

    @property
    def efa(self) -> bool:
        return self.driver == "efa"

    @property
    def pci(self) -> str:
        """Its PCI device id, four hex digits; empty: not told."""
        return self.model.partition(" ")[0].rpartition(":")[2].lower()


def devices(files: Mapping[str, str]) -> list[Device]:
    """``files``: path → text, of ``device/driver`` the link's target. In order of names."""
    by_device: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        match = _PATH.match(path)
        if match:
            by_device.setdefault(match.group(1), {})[match.group(2)] = text.strip()
    return [_device(name, by_device[name]) for name in sorted(by_device)]


def named(state: str | None) -> str | None:
    """``4: ACTIVE`` → ``ACTIVE``."""
    return None if not state else state.partition(":")[2].strip() or state.strip()


def _device(name: str, files: Mapping[str, str]) -> Device:
    told = dict(_UEVENT.findall(files.get("device/uevent", "")))
    return Device(
        name,
        files.get("device/driver", "").rsplit("/", 1)[-1] or None,
        tuple(_ports(files)),
        files.get("fw_ver") or None,
        files.get("device/p2p"),
        _counters(files),
        " ".join(filter(None, (told.get("PCI_ID"), told.get("PCI_SUBSYS_ID")))),
        told.get("PCI_SLOT_NAME", ""),
    )


def _ports(files: Mapping[str, str]) -> Iterable[Port]:
    found = (_PORT.match(path) for path in files)
    for number in sorted({int(one.group(1)) for one in found if one}):
        base = f"ports/{number}/"
        yield Port(
            number,
            named(files.get(base + "state")),
            named(files.get(base + "phys_state")),
            files.get(base + "rate"),
            files.get(base + "link_layer"),
        )


def _counters(files: Mapping[str, str]) -> dict[str, int]:
    return {
        path: int(text)
        for path, text in files.items()
        if _COUNTER.match(path) and text.isascii() and text.isdigit() and len(text) <= 20
    }
