"""PCI functions by their files below /sys/bus/pci/devices: which there are, who drives them, how wide their links are.

What fell off the bus keeps its folder until somebody rescans; its driver's link may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Function", "efas", "functions", "gpus", "switches"]

_PATH = re.compile(r".*/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/([a-z_]{1,40})\Z", re.IGNORECASE)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_NVIDIA, _AMAZON = "10de", "1d0f"
#: PCI base class and sub-class: VGA, 3D controller; bridge of another kind.
_DISPLAY = ("0300", "0302")
_SWITCH = ("0680",)
_EFA = "efa"


@dataclass(frozen=True)
class Function:
    """``slot``: ``0000:a1:00.0``. ``kind``: four hex digits of its class. ``driver`` None: none holds it.

    ``width`` in lanes, ``speed`` in GT/s; None where the link tells none (a function of a virtual machine).
    """

    slot: str
    vendor: str
    kind: str
    device: str = ""
    driver: str | None = None
    width: int | None = None
    width_max: int | None = None
    speed: float | None = None
    speed_max: float | None = None
    numa: int | None = None


def functions(*sources: Mapping[str, str]) -> list[Function]:
    """``sources``: path → text; of ``driver`` the link's target."""
    by_slot: dict[str, dict[str, str]] = {}
    for path, text in (pair for files in sources for pair in files.items()):
        match = _PATH.match(path)
        if match:
            by_slot.setdefault(match.group(1).lower(), {})[match.group(2)] = text.strip()
    return [_function(slot, files) for slot, files in sorted(by_slot.items()) if files.get("vendor")]


def gpus(found: Iterable[Function]) -> list[Function]:
    return [one for one in found if one.vendor == _NVIDIA and one.kind in _DISPLAY]


def switches(found: Iterable[Function]) -> list[Function]:
    """NVSwitches, as far as they are on this machine's bus (a virtual machine may see none)."""
    return [one for one in found if one.vendor == _NVIDIA and one.kind in _SWITCH]


def efas(found: Iterable[Function]) -> list[Function]:
    """Amazon's device ids efa0 to efaf are EFA in all generations so far; else by the driver."""
    return [one for one in found if one.vendor == _AMAZON and (one.device.startswith(_EFA) or one.driver == "efa")]


def _function(slot: str, files: Mapping[str, str]) -> Function:
    return Function(
        slot,
        _hex(files["vendor"]),
        _hex(files.get("class", "")).zfill(6)[:4],
        _hex(files.get("device", "")),
        files.get("driver", "").rsplit("/", 1)[-1] or None,
        _lanes(files.get("current_link_width")),
        _lanes(files.get("max_link_width")),
        _speed(files.get("current_link_speed")),
        _speed(files.get("max_link_speed")),
        _numa(files.get("numa_node")),
    )


def _hex(text: str) -> str:
    return text.strip().lower().removeprefix("0x")[:8]


def _lanes(text: str | None) -> int | None:
    """0 and 255 are what the kernel shows where a link tells none."""
    known = text is not None and text.isascii() and text.isdigit() and len(text) < 4
    return int(text) if known and text and int(text) not in (0, 255) else None


def _speed(text: str | None) -> float | None:
    found = _SPEED.match(text or "")
    return float(found.group(1)) if found else None


def _numa(text: str | None) -> int | None:
    """-1: the firmware tells none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 5 else None
