"""What the host's firewall does with a new TCP connection of a job: ``nft list ruleset``, ``iptables-save``.

Rules are walked in their order, through the chains that they jump to. A rule by address or interface may hold or not:
then the answer is in doubt. Tables of IPv6 alone, of bridges and of ARP are left out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

__all__ = ["Base", "Rule", "Ruleset", "Stop", "in_iptables", "in_nft", "stops"]

#: ``in-doubt``: an address or something that is not understood. ``local``: an interface, or a set of addresses.
Match = Literal["yes", "no", "in-doubt", "local"]
_DEPTH, _STEPS = 16, 20_000
_PRIVATE = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
#: A cluster's network has more addresses than this.
_NARROWEST = 28
_RANGE = re.compile(r"([0-9]{1,5})(?:[-:]([0-9]{1,5}))?\Z")
_VIRTUAL = re.compile(r"(?:lo|docker|virbr|veth|br-|cni|podman|cali|flannel|tun|tap|wg)[\w.+*-]*\Z")


class Net(NamedTuple):
    words: tuple[str, ...]
    inverted: bool


@dataclass(frozen=True)
class Rule:
    """``verdict``: accept, drop, jump, goto, return, or empty. ``ports``: those that it names, None: all.
    ``match``: what all its other conditions come to."""

    line: str
    verdict: str
    target: str = ""
    match: Match = "yes"
    ports: Sequence[tuple[int, int]] | None = None
    nets: Sequence[Net] = ()


class Base(NamedTuple):
    """A chain that the kernel enters by itself. ``drops``: its last word, for what no rule lets in."""

    chain: str
    shown: str
    drops: bool
    line: str


@dataclass
class Ruleset:
    """``lines`` by chain: of thousands a few are ever walked through, and ``read`` makes rules of those alone."""

    read: Callable[[str, str], Rule]
    bases: list[Base] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)
    _read: dict[str, list[Rule]] = field(default_factory=dict)

    def rules(self, chain: str) -> Sequence[Rule]:
        if chain not in self._read:
            self._read[chain] = [self.read(line, chain) for line in self.lines.get(chain, ())[: _STEPS + 1]]
        return self._read[chain]


class Stop(NamedTuple):
    """``sure``: no rule that may hold lets it in before."""

    chain: str
    line: str
    sure: bool


def stops(rules: Ruleset, port: int, own: str = "") -> list[Stop]:
    """``own``: this node's IPv4 address, in the network of its peers; empty: not known."""
    try:
        address = ipaddress.IPv4Address(own)
    except ValueError:
        address = None
    found = (_Walk(rules, port, address).stop(base) for base in rules.bases)
    return [one for one in found if one is not None]


@dataclass
class _Walk:
    rules: Ruleset
    port: int
    own: ipaddress.IPv4Address | None
    let_in: bool = False
    kept_out: list[Rule] = field(default_factory=list)
    steps: int = 0

    def stop(self, base: Base) -> Stop | None:
        last = self.walk(base.chain, 0)
        if last is None and base.drops:
            last = Rule(base.line, "drop")
        if self.steps > _STEPS:
            return Stop(base.shown, "too many rules to walk through", False)
        if last is not None and last.verdict == "drop":
            return Stop(base.shown, last.line, not self.let_in)
        return Stop(base.shown, self.kept_out[0].line, False) if self.kept_out else None

    def walk(self, chain: str, depth: int) -> Rule | None:
        """The rule that decides. None: none does, and who jumped here goes on."""
        for rule in self.rules.rules(chain) if depth < _DEPTH else ():
            self.steps += 1
            match = self.match(rule)
            if match == "no" or self.steps > _STEPS:
                continue
            decided = rule
            if rule.verdict in ("jump", "goto"):
                below = self.walk(rule.target, depth + 1)
                if below is None and rule.verdict == "goto" and match == "yes":
                    return None
                if below is None:
                    continue
                decided = below
                match = "in-doubt" if match == "local" else match
            if match == "yes":
                return None if decided.verdict == "return" else decided
            self.doubt(decided, match)
        return None

    def doubt(self, rule: Rule, match: Match) -> None:
        """Rules of an interface or a set keep out strangers, as a rule."""
        if rule.verdict == "accept":
            self.let_in = True
        elif rule.verdict == "drop" and match == "in-doubt":
            self.kept_out.append(rule)

    def match(self, rule: Rule) -> Match:
        if rule.match == "no" or not rule.verdict:
            return "no"
        if rule.ports is not None and not any(low <= self.port <= high for low, high in rule.ports):
            return "no"
        return _least([rule.match, *(self.of_net(net, rule.verdict) for net in rule.nets)])

    def of_net(self, net: Net, verdict: str) -> Match:
        try:
            nets = _networks(net.words)
        except ValueError:
            return "local"
        inside = [one for one in nets if self.own is not None and self.own in one]
        if inside or any(one.prefixlen == 0 for one in nets):
            wide = any(one.prefixlen <= _NARROWEST for one in inside or nets)
            return ("no" if net.inverted else "yes") if wide else "in-doubt"
        if net.inverted:
            return "yes" if self.own is not None else "in-doubt"
        if verdict == "drop" and self.own is not None:
            return "no"
        return "in-doubt" if any(one.overlaps(other) for one in nets for other in _PRIVATE) else "no"


@lru_cache(maxsize=4096)
def _networks(words: tuple[str, ...]) -> list[ipaddress.IPv4Network]:
    return [ipaddress.IPv4Network(word, strict=False) for word in words]


def _least(found: Iterable[Match]) -> Match:
    words = set(found)
    order: tuple[Match, ...] = ("no", "local", "in-doubt", "yes")
    return next(word for word in order if word in words)


# nft

_BASE = re.compile(r"type filter hook (input|output)\b.*?policy (\w+)", re.IGNORECASE)
_TABLE = re.compile(r"table (\w+) (\S+) \{")
_TEXTS = re.compile(r'\b(?:comment|prefix) "[^"]*"')
_VERDICT = re.compile(r"\b(accept|drop|reject|return|(?:jump|goto) (\S+))(?: with .*)?\s*\Z")
#: What decides without a word of nft's own: a program (queue), or a target of iptables that nft can't say, which it
#: prints as ``xt target "REJECT"`` or, older ones, as ``# REJECT`` (nftables src/xt.c). Targets that only mark or log
#: decide nothing.
_FOREIGN = re.compile(
    r'(?:\bxt target "|#)(?! *(?:xt_)?(?:N?F?LOG|ULOG|(?:CONN)?(?:SEC)?MARK|TRACE|CT|TCPMSS|AUDIT|SET|DSCP|TOS)\b)'
    r".*|\bqueue\b.*"
)
_VALUE = r"(!= )?(\{[^}]*\}|\S+)"
_STATE = re.compile(rf"\bct state {_VALUE}")
_INTERFACE = re.compile(rf"\b[io]if(?:name)? {_VALUE}")
_ADDRESS = re.compile(rf"\bip [sd]addr {_VALUE}")
_PORT = re.compile(rf"\b(?:tcp|th) dport {_VALUE}")
_EMPTY = re.compile(
    r"\bcounter(?: packets \d+ bytes \d+)?|\blog(?: (?:level|group|flags|snaplen|queue-threshold) \S+)*"
    r"|\b(?:meta l4proto|ip protocol) (?:tcp|6)\b|\bmeta nfproto ipv4\b"
)
#: None of a connection that a job makes by TCP over IPv4, or only some packets of it.
_OTHERS = re.compile(
    r"\btcp flags|\b(?:protocol|l4proto) (?:\{[^}]*\} )?(?:udp|icmp|icmpv6|ipv6-icmp|igmp|sctp|esp|ah)\b|\budp |\bicmp"
    r"|\bip6 |\bnfproto ipv6|\bct status|\blimit rate|\bpkttype|\bfib |\bct state vmap",
    re.IGNORECASE,
)


def in_nft(text: str) -> Ruleset:
    found, table, chain, skip = Ruleset(_nft_rule), "", "", False
    for line in (one.strip() for one in text.splitlines()):
        head = _TABLE.match(line)
        base = _BASE.search(line)
        if head:
            table, chain = f"{head.group(1)} {head.group(2)}", ""
            skip = head.group(1) in ("ip6", "arp", "bridge", "netdev")
        elif line.startswith(("chain ", "set ", "map ", "flowtable ")):
            chain = f"{table} {line.split()[1]}" if line.startswith("chain ") and not skip else ""
        elif base and chain:
            drops = base.group(2).lower() != "accept"
            found.bases.append(Base(chain, base.group(1).lower(), drops, line))
        elif line == "}":
            chain = ""
        elif chain and line:
            found.lines.setdefault(chain, []).append(line)
    return found


def _nft_rule(line: str, chain: str) -> Rule:
    table = chain.rpartition(" ")[0]
    bare = _TEXTS.sub("", line).strip()
    verdict = _VERDICT.search(bare)
    if " vmap " in bare and not _OTHERS.search(bare):
        return Rule(line, "accept", match="in-doubt")
    foreign = None if verdict else _FOREIGN.search(bare)
    end = verdict or foreign
    if end is None:
        return Rule(line, "")
    rest = bare[: end.start()]
    word = verdict.group(1).split()[0] if verdict else "drop"
    target = f"{table} {verdict.group(2)}" if verdict and verdict.group(2) else ""
    matches = [_of_state(one) for one in _STATE.findall(rest)] + [_of_names(*one) for one in _INTERFACE.findall(rest)]
    nets = [Net(_words(value), bool(inverted)) for inverted, value in _ADDRESS.findall(rest)]
    ports, odd = _of_ports([(bool(inverted), ",".join(_words(value))) for inverted, value in _PORT.findall(rest)])
    if _OTHERS.search(rest):
        matches.append("no")
    for known in (_STATE, _INTERFACE, _ADDRESS, _PORT, _EMPTY):
        rest = known.sub("", rest)
    matches += [odd, "in-doubt" if foreign or rest.strip() else "yes"]
    return Rule(line, "drop" if word == "reject" else word, target, _least(matches), ports, nets)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,\s{}]+", value) if word)


def _of_state(found: tuple[str, str]) -> Match:
    return "yes" if bool(found[0]) != ("new" in _words(found[1])) else "no"


def _of_names(inverted: str, value: str) -> Match:
    names = [word.strip('"') for word in _words(value)]
    if all(_VIRTUAL.match(name) for name in names):
        return "yes" if inverted else "no"
    return "local"


def _of_ports(found: Sequence[tuple[bool, str]]) -> tuple[tuple[tuple[int, int], ...] | None, Match]:
    """A service's name is none of a job's ports; a set may hold any."""
    if not found:
        return None, "yes"
    if any(inverted or "@" in text for inverted, text in found):
        return None, "in-doubt"
    parts = filter(None, (_RANGE.match(one) for _, text in found for one in text.split(",")))
    return tuple((int(one.group(1)), int(one.group(2) or one.group(1))) for one in parts), "yes"


# iptables

_HOOKS = {"INPUT": "input", "OUTPUT": "output"}
#: Targets after which another program, or an answer of the kernel's own, decides.
_BY_OTHERS = ("NFQUEUE", "QUEUE", "SYNPROXY", "TARPIT")
_TARGETS = {
    "ACCEPT": "accept",
    "DROP": "drop",
    "REJECT": "drop",
    "RETURN": "return",
    **dict.fromkeys(_BY_OTHERS, "drop"),
}
_QUIET = frozenset({"tcp", "conntrack", "state", "multiport", "comment"})
_NARROW = frozenset({"limit", "hashlimit", "connlimit", "recent", "pkttype", "addrtype", "icmp", "udp", "rpfilter"})


def in_iptables(text: str) -> Ruleset:
    """``iptables-save`` (``:INPUT DROP [0:0]``) or ``iptables -S`` (``-P INPUT DROP``), ``-A INPUT … -j DROP``.
    Of the tables only ``filter`` stops anything."""
    found, table = Ruleset(_iptables_rule), "filter"
    for line in (one.strip() for one in text.splitlines()):
        table = line[1:] if line.startswith("*") else table
        words = line.split(None, 3)
        if table != "filter" or len(words) < 2:
            continue
        name, policy = (words[0][1:], words[1]) if line.startswith(":") else (words[1], "".join(words[2:3]))
        if (line.startswith(":") or words[0] == "-P") and name in _HOOKS:
            found.bases.append(Base(name, _HOOKS[name], policy in ("DROP", "REJECT"), line))
        elif words[0] == "-A":
            found.lines.setdefault(name, []).append(line)
    told = {base.chain for base in found.bases}
    found.bases += [Base(name, _HOOKS[name], False, "") for name in _HOOKS if name in found.lines and name not in told]
    return found


def _iptables_rule(line: str, _chain: str) -> Rule:
    verdict, target = "", ""
    matches: list[Match] = ["yes"]
    nets, ports = [], []
    for word, values, inverted in _options(line):
        value = values[0] if values else ""
        if word in ("-j", "-g"):  # what follows are words of the target's own
            verdict, target = _TARGETS.get(value, "goto" if word == "-g" else "jump"), value
            matches.append("in-doubt" if value in _BY_OTHERS else "yes")
            break
        if word in ("-s", "-d"):
            nets.append(Net((value,), inverted))
        elif word in ("--dport", "--dports", "--destination-port"):
            ports.append((inverted, value))
        else:
            matches.append(_of_option(word, values, inverted))
    ranges, odd = _of_ports(ports)
    return Rule(line, verdict, target, _least([*matches, odd]), ranges, nets)


def _options(line: str) -> Iterator[tuple[str, list[str], bool]]:
    """Each with all its values: none (``--syn``), one, or two (``--match-set peers src``). ``!`` stands before it, in
    old versions behind."""
    words = re.sub(r'"(?:[^"\\]|\\.)*"', "text", line).split()[2:]
    starts = [at for at, word in enumerate(words) if word.startswith("-")]
    for at, end in zip(starts, [*starts[1:], len(words)], strict=False):
        values = words[at + 1 : end]
        if values[-1:] == ["!"]:
            del values[-1]
        inverted = words[max(0, at - 1)] == "!" or values[:1] == ["!"]
        yield words[at], [word for word in values if word != "!"], inverted


def _of_option(word: str, values: Sequence[str], inverted: bool) -> Match:
    value = values[0] if values else ""
    if word in ("-i", "-o"):
        return _of_names("!" if inverted else "", value)
    if word in ("--ctstate", "--state"):
        return "yes" if ("NEW" in value.split(",")) != inverted else "no"
    if word == "-p":
        return "yes" if (value in ("tcp", "all", "6")) != inverted else "no"
    if word == "-m":
        return "no" if value in _NARROW else "yes" if value in _QUIET else "local" if value == "set" else "in-doubt"
    if word in ("--tcp-flags", "--syn"):
        return "yes" if (word == "--syn" or _is_first(values)) != inverted else "no"
    return "yes" if word == "--comment" else "local" if word == "--match-set" else "in-doubt"


def _is_first(values: Sequence[str]) -> bool:
    """``mask set``, as in ``FIN,SYN,RST,ACK SYN``: whether a connection's first packet, with SYN alone, is so."""
    mask, wanted = ([] if one == "NONE" else one.split(",") for one in (*values, "", "")[:2])
    return set(wanted) == ({"SYN"} if {"SYN", "ALL"} & set(mask) else set())
