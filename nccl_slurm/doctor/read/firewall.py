"""Rules of the host's firewall that could stop a job's traffic: ``nft list ruleset``, ``iptables-save``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Block", "blocks", "in_iptables", "in_nft", "stops"]

_POLICY = re.compile(r"type filter hook (input|output|forward)\b.*policy (drop|reject|accept)", re.IGNORECASE)
_NFT_PORTS = re.compile(r"\b(?:tcp|udp|th) dport (?:\{([^}]{1,400})\}|([0-9-]{1,11}))")
_CHAINS = {"INPUT": "input", "OUTPUT": "output", "FORWARD": "forward"}
_RANGE = re.compile(r"([0-9]{1,5})(?:[-:]([0-9]{1,5}))?\Z")


@dataclass(frozen=True)
class Block:
    """``ports``: closed ranges that it names; empty: all. ``policy``: the chain's last word, for what no rule lets in.
    ``narrow``: it names an address, an interface or a state too, so that it may stop nothing of a job."""

    chain: str
    line: str
    ports: Sequence[tuple[int, int]] = ()
    policy: bool = False
    narrow: bool = False


def blocks(nft: str | None, iptables: str | None) -> list[Block]:
    return [*in_nft(nft or ""), *in_iptables(iptables or "")]


def in_nft(text: str) -> list[Block]:
    found: list[Block] = []
    chain = ""
    for line in (one.strip() for one in text.splitlines()):
        policy = _POLICY.search(line)
        if line.startswith("chain "):
            chain = ""
        elif policy:
            chain = policy.group(1).lower()
            if policy.group(2).lower() != "accept" and chain != "forward":
                found.append(Block(chain, line, policy=True))
        elif chain in ("input", "output") and re.search(r"\b(drop|reject)\b", line):
            found.append(Block(chain, line, _ports(line, _NFT_PORTS), narrow=_is_narrow(line)))
    return found


def in_iptables(text: str) -> list[Block]:
    """``iptables-save`` (``:INPUT DROP [0:0]``) or ``iptables -S`` (``-P INPUT DROP``), ``-A INPUT … -j DROP``.
    Of the tables only ``filter`` stops anything."""
    found: list[Block] = []
    table = "filter"
    for line in (one.strip() for one in text.splitlines()):
        table = line[1:] if line.startswith("*") else table
        words = line.replace(":", "-P ", 1).split() if line.startswith(":") else line.split()
        chain = _CHAINS.get(words[1]) if len(words) > 2 else None
        if table != "filter" or chain in (None, "forward"):
            continue
        if words[0] == "-P" and words[2] in ("DROP", "REJECT"):
            found.append(Block(str(chain), line, policy=True))
        elif words[0] == "-A" and re.search(r"-j (DROP|REJECT)\b", line):
            ports = re.search(r"--(?:dport|dports|destination-port) (\S{1,400})", line)
            found.append(Block(str(chain), line, _ranges(ports.group(1)) if ports else (), narrow=_is_narrow(line)))
    return found


def stops(block: Block, port: int) -> bool:
    return not block.ports or any(low <= port <= high for low, high in block.ports)


#: A rule that names one of these stops some packets alone, and none of a connection that a job makes by TCP.
_NARROW = re.compile(
    r" -[sdio] |--ctstate INVALID|--state INVALID|ct state invalid|--tcp-flags|tcp flags|(?:-p|\bprotocol|\bl4proto) "
    r"(?:udp|icmp|icmpv6|ipv6-icmp|sctp)\b|\budp dport|\bicmp(?:v6)? type|-m limit|\blimit rate|pkttype|-m recent|fib "
    r"|\b(?:saddr|daddr|iifname|oifname|iif|oif)\b",
    re.IGNORECASE,
)


def _is_narrow(line: str) -> bool:
    return _NARROW.search(line) is not None


def _ports(line: str, rule: re.Pattern[str]) -> tuple[tuple[int, int], ...]:
    found = rule.search(line)
    return _ranges((found.group(1) or found.group(2)).replace(" ", "")) if found else ()


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    found = filter(None, map(_RANGE.match, text.split(",")))
    return tuple((int(one.group(1)), int(one.group(2) or one.group(1))) for one in found)
