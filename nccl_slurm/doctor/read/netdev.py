"""Network interfaces below /sys/class/net: only those of a real device carry a job's traffic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Interface", "interfaces"]

_PATH = re.compile(r".*/net/([^/]{1,32})/(.+)\Z")
_STATISTIC = re.compile(r"statistics/([a-z_]{1,40})\Z")


@dataclass(frozen=True)
class Interface:
    """``driver`` None: a virtual one (lo, veth, bridges), or not told. ``state``: up, down, unknown."""

    name: str
    mtu: int | None
    state: str | None
    driver: str | None
    kind: int | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)

    @property
    def ethernet(self) -> bool:
        """By ARPHRD_ETHER (1); IPoIB is 32."""
        return self.kind == 1


def interfaces(files: Mapping[str, str]) -> list[Interface]:
    by_name: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        match = _PATH.match(path)
        if match:
            by_name.setdefault(match.group(1), {})[match.group(2)] = text.strip()
    return [_interface(name, by_name[name]) for name in sorted(by_name)]


def _interface(name: str, files: Mapping[str, str]) -> Interface:
    pairs = ((_STATISTIC.match(path), _whole(text)) for path, text in files.items())
    return Interface(
        name,
        _whole(files.get("mtu")),
        files.get("operstate") or None,
        files.get("device/driver", "").rsplit("/", 1)[-1] or None,
        _whole(files.get("type")),
        {match.group(1): value for match, value in pairs if match and value is not None},
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 20 else None
