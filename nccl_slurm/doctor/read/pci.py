"""PCI functions by their files below /sys/bus/pci/devices: which there are, who drives them, how wide their links are.

What fell off the bus keeps its folder until somebody rescans; its driver's link may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Function", "above", "efas", "functions", "gpus", "infiniband", "is_virtual", "others", "switches"]

_PATH = re.compile(r".*/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/([a-z_]{1,40})\Z", re.IGNORECASE)
_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA, _AMAZON = "10de", "1d0f"
#: PCI base class and sub-class: VGA, 3D controller; bridge of another kind.
_DISPLAY = ("0300", "0302")
_SWITCH = ("0680",)
#: Accelerators of other makers, by PCI base class and sub-class: 3D and other display controllers, processing
#: accelerators. A VGA controller is a console as a rule.
_OTHERS = {"1002": ("0302", "0380", "1200"), "8086": ("0302", "0380"), "1da3": ("1200",)}
_BUILT_IN = ":00:"
_EFA = "efa"
#: Class *InfiniBand controller*; a card of Mellanox's that speaks Ethernet is told by its maker.
_INFINIBAND, _ETHERNET, _MELLANOX = "0207", "0200", "15b3"
#: Virtual functions, which a host without use for them leaves without a driver (Linux, mlx5 core/main.c).
_VIRTUAL = frozenset({"1014", "1016", "1018", "101a", "101c", "101e", "a2d3"})
#: Drivers that hand a function on, to a virtual machine or to a program of its own (DPDK).
_HANDED_ON = ("vfio", "uio", "igb_uio", "pci-stub", "pciback")


@dataclass(frozen=True)
class Function:
    """``slot``: ``0000:a1:00.0``. ``kind``: four hex digits of its class. ``driver`` None: none holds it.

    ``width`` in lanes; None where the link tells none (a function of a virtual machine).
    """

    slot: str
    vendor: str
    kind: str
    device: str = ""
    driver: str | None = None
    width: int | None = None
    width_max: int | None = None
    numa: int | None = None

    @property
    def ethernet(self) -> bool:
        return self.kind == _ETHERNET


def above(paths: Mapping[str, str]) -> dict[str, str]:
    """Slot → that of the bridge above it. ``paths``: below /sys/bus/pci/devices → the link's target, in which the one
    stands behind the other."""
    places = (target.lower().split("/")[-2:] for target in paths.values())
    return {place[1]: place[0] for place in places if len(place) == 2 and all(map(_SLOT.fullmatch, place))}


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


def others(found: Iterable[Function]) -> list[Function]:
    """Accelerators of AMD, Intel and Habana; Intel's on the first bus are a part of the processor."""
    mine = (one for one in found if _BUILT_IN not in one.slot or one.vendor != "8086")
    return [one for one in mine if one.kind in _OTHERS.get(one.vendor, ())]


def switches(found: Iterable[Function]) -> list[Function]:
    """NVSwitches, as far as they are on this machine's bus (a virtual machine may see none)."""
    return [one for one in found if one.vendor == _NVIDIA and one.kind in _SWITCH]


def efas(found: Iterable[Function]) -> list[Function]:
    """Amazon's device ids efa0 to efaf are EFA in all generations so far; else by the driver."""
    return [one for one in found if one.vendor == _AMAZON and (one.device.startswith(_EFA) or one.driver == "efa")]


def infiniband(found: Iterable[Function]) -> list[Function]:
    """InfiniBand cards of this machine, and Mellanox's Ethernet ones that no driver holds where those of their model
    have one, or nothing of Mellanox's has. None that is handed on, and a host's virtual functions neither; in a guest,
    which has no others, they are its cards."""
    every = [one for one in found if one.vendor == _MELLANOX or one.kind == _INFINIBAND]
    guest = all(is_virtual(one.device) for one in every)
    mine = [one for one in every if guest or not is_virtual(one.device)]
    mine = [one for one in mine if not (one.driver or "").startswith(_HANDED_ON)]
    driven = {one.device for one in mine if one.driver is not None and one.vendor == _MELLANOX}
    return [one for one in mine if one.kind == _INFINIBAND or (_is_bare(one) and (one.device in driven or not driven))]


def is_virtual(device: str) -> bool:
    """Of Mellanox's functions. ``device``: four hex digits."""
    return device in _VIRTUAL


def _is_bare(one: Function) -> bool:
    """A card for Ethernet without a driver: InfiniBand's are told by their class."""
    return one.ethernet and one.vendor == _MELLANOX and one.driver is None


def _function(slot: str, files: Mapping[str, str]) -> Function:
    return Function(
        slot,
        _hex(files["vendor"]),
        _hex(files.get("class", "")).zfill(6)[:4],
        _hex(files.get("device", "")),
        files.get("driver", "").rsplit("/", 1)[-1] or None,
        _lanes(files.get("current_link_width")),
        _lanes(files.get("max_link_width")),
        _numa(files.get("numa_node")),
    )


def _hex(text: str) -> str:
    return text.strip().lower().removeprefix("0x")[:8]


def _lanes(text: str | None) -> int | None:
    """0 and 255 are what the kernel shows where a link tells none."""
    known = text is not None and text.isascii() and text.isdigit() and len(text) < 4
    return int(text) if known and text and int(text) not in (0, 255) else None


def _numa(text: str | None) -> int | None:
    """-1: the firmware tells none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 5 else None
