"""``nvidia-smi topo -m``: how each GPU reaches each other GPU and NIC. Headers may carry ANSI underline codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Topology", "read", "read_p2p"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"(?:GPU|NIC)[0-9]{1,3}\Z|(?:mlx|efa|rdmap|bnxt)[A-Za-z0-9_]{1,30}\Z")
_WORD = re.compile(r"(?:X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|N/A)\Z")
#: OK; chipset, GPU, topology not supported; disabled by registry key; not supported; unknown.
_P2P = re.compile(r"(?:X|OK|CNS|GNS|TNS|NS|DR|U)\Z")
_MAX = 128


@dataclass(frozen=True)
class Topology:
    """``paths``: row → column → word (``NV18``, ``PIX``, ``SYS``)."""

    paths: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.paths if name.startswith("GPU")]

    def pairs(self) -> dict[tuple[str, str], str]:
        """Between GPUs, each pair once."""
        return {
            (one, other): self.paths[one][other]
            for number, one in enumerate(self.gpus)
            for other in self.gpus[number + 1 :]
            if other in self.paths[one]
        }


def read(text: str) -> Topology:
    return Topology(_matrix(_plain(text), _WORD))


def read_p2p(text: str) -> dict[tuple[str, str], str]:
    """``nvidia-smi topo -p2p n``: ``OK`` or the driver's reason, each pair of GPUs once."""
    return Topology(_matrix(_plain(text), _P2P)).pairs()


def _plain(text: str) -> list[str]:
    return [_ANSI.sub("", line) for line in text.splitlines()]


def _matrix(lines: list[str], known: re.Pattern[str]) -> dict[str, dict[str, str]]:
    header = next((line.split() for line in lines if _is_header(line)), [])
    columns = [word for word in header if _DEVICE.match(word)][:_MAX]
    paths: dict[str, dict[str, str]] = {}
    for words in (line.split() for line in lines if not _is_header(line)):
        if words and words[0] in columns and any(known.match(word) for word in words[1:]):
            pairs = zip(columns, words[1:], strict=False)
            paths[words[0]] = {name: word for name, word in pairs if known.match(word)}
    return paths


def _is_header(line: str) -> bool:
    words = line.split()[:2]
    return len(words) > 0 and all(_DEVICE.match(word) or word == "CPU" for word in words) and not line[:1].isalnum()
