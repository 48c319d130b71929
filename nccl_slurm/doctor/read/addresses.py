"""Addresses of a node's own interfaces, by /proc/net/fib_trie (IPv4) and /proc/net/if_inet6."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping

__all__ = ["addresses"]

_LOCAL4 = re.compile(r"\|-- ([0-9.]{7,15})\n\s+/32 host LOCAL")
_LOCAL6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


def addresses(files: Mapping[str, str]) -> frozenset[str]:
    """As `socket.getaddrinfo` writes them. Without loopbacks and those of one link: every node has the same ones."""
    return frozenset(str(one) for text in files.values() for one in _told(text) if not _is_everybodys(one))


def _told(text: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for found in _LOCAL4.findall(text):
        try:
            yield ipaddress.IPv4Address(found)
        except ValueError:
            continue
    for found in _LOCAL6.findall(text):
        yield ipaddress.IPv6Address(int(found, 16))


def _is_everybodys(one: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return one.is_loopback or one.is_link_local
