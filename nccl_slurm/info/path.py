"""The way that data takes between ranks, as NCCL's INFO lines tell it.

One job's nodes are mostly alike, so a node whose ranks go another way than the others' (sockets in place of
InfiniBand, no GPUDirect, shared memory in place of P2P, an adapter less) is worth a look: such a job runs, slowly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from nccl_slurm.info.communicator import Spans
from nccl_slurm.info.split import Split, split
from nccl_slurm.info.teller import Teller, teller
from nccl_slurm.model import Fact

__all__ = ["KINDS", "NVLS", "Change", "Odd", "changes", "odd_paths", "pair", "path", "paths", "ways"]

#: ``via P2P/IPC comm 0x…``: what follows is no part of the path.
_TAIL = re.compile(r" comm\b.*")
_PORT = re.compile(r"\[\d+\][\w.-]{1,64}(?::\d+)?/(IB|RoCE)\b")
_INTERFACE = re.compile(r"\[\d+\][\w.-]{1,64}:")

_VALUE = re.compile(r"[A-Za-z0-9][\w /.,:+-]{0,79}")

#: What is compared, in the order of the report.
NETWORK = "the network"
BETWEEN = "the path between nodes"
INSIDE = "the path inside a node"
LINKS = "their adapters"
PROVIDER = "libfabric's provider"
GPUDIRECT = "GPUDirect RDMA"
NVLS = "NVLS multicast"
_CHANNEL = "nccl.channel"
_OF_CHANNELS = (BETWEEN, INSIDE)
_ORDER = (NETWORK, BETWEEN, INSIDE, LINKS, PROVIDER, GPUDIRECT, NVLS)
KINDS = frozenset(
    {"nccl.network", "nccl.channel", "nccl.devices", "nccl.no-ib", "nccl.gdr", "nccl.nvls", "ofi.provider"}
)

#: Who → value → the first line that says so.
_Said = dict[Teller, dict[str, Fact]]


@dataclass(frozen=True)
class Odd:
    """``what`` differs between hosts (or between ranks, where lines tell no host).

    ``facts``: first the lines that not all have. ``communicators``: those in which it is so; empty where not known.
    """

    what: str
    split: Split
    facts: Sequence[Fact]
    communicators: Sequence[str] = ()


def path(fact: Fact) -> str | None:
    """``NET/IB/GDRDMA``, ``NET/Socket``, ``P2P/CUMEM``, ``SHM/direct`` of a channel's line; None for another line."""
    via = fact.data.get("via")
    if fact.kind != _CHANNEL or not isinstance(via, str):
        return None
    return (_TAIL.sub("", via) if " comm" in via else via).strip() + str(fact.data.get("gdr") or "")


def pair(fact: Fact) -> str:
    """``4 -> 0``: ranks in the communicator."""
    return f"{fact.data.get('group_from', '?')} -> {fact.data.get('group_to', '?')}"


def paths(facts: Iterable[Fact]) -> Iterator[tuple[str, Fact]]:
    """(network or path, line that says so): the chosen network by its bare name, each channel's path, NVLS."""
    for fact in facts:
        if fact.kind not in KINDS:
            continue
        name = _network(fact) or path(fact) or (NVLS if _nvls(fact) == "available" else None)
        if name:
            yield name[:100], fact


def odd_paths(facts: Sequence[Fact], *, whole: bool = True) -> list[Odd]:
    """Nodes are compared with nodes, channels within one communicator.

    All values of one host count as one: what its ranks said, joined by ``+``. ``whole``: the parser left out no line
    of a channel; else channels of all communicators are taken together, for every path is kept but not every line.
    """
    spans = Spans(facts if whole else ())
    lines = [fact for fact in facts if fact.kind in KINDS]
    partly = _seen_partly(lines)
    said: dict[tuple[str, str], _Said] = {}
    for fact in lines:
        who = fact.host or teller(fact)
        told = _told(fact) if who is not None else None
        if who is None or told is None or (told[0] in _OF_CHANNELS and who in partly):
            continue
        communicator = (spans.of(fact) or "") if told[0] in _OF_CHANNELS else ""
        said.setdefault((told[0], communicator), {}).setdefault(who, {}).setdefault(told[1], fact)
    found: list[Odd] = []
    for (what, communicator), words in sorted(said.items(), key=lambda item: _ORDER.index(item[0][0])):
        one = _odd(what, words)
        if one is not None:
            _join(found, one, communicator)
    return found


@dataclass(frozen=True)
class Change:
    """``hosts`` take ways in ``what`` that they did not take before. ``facts``: lines that say so now."""

    what: str
    before: Sequence[str]
    now: Sequence[str]
    hosts: Sequence[str]
    facts: Sequence[Fact]


def ways(facts: Iterable[Fact]) -> dict[str, dict[str, list[str]]]:
    """Host → what is compared → its values, sorted. Values of an odd form, which only a job's own words have, are not
    among them: later reports print these."""
    found: dict[str, dict[str, set[str]]] = {}
    for host, what, value, _ in _by_host(facts):
        found.setdefault(host, {}).setdefault(what, set()).add(value)
    return {host: {what: sorted(values) for what, values in own.items()} for host, own in found.items()}


def changes(before: Mapping[str, Mapping[str, Sequence[str]]], facts: Iterable[Fact]) -> list[Change]:
    """Only what both tell of a host is compared, and only ways that are new: a program may use fewer than another."""
    lines = list(facts)
    now = ways(lines)
    hosts: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for host, own in now.items():
        for what, values in own.items():
            old = before.get(host, {}).get(what, ())
            if old and not set(values) <= set(old):
                hosts.setdefault((what, tuple(old), tuple(values)), []).append(host)
    made = [_change(key, sorted(of), lines) for key, of in hosts.items()]
    return sorted(made, key=lambda one: (_ORDER.index(one.what), one.hosts))


def _change(key: tuple[str, tuple[str, ...], tuple[str, ...]], hosts: Sequence[str], lines: Iterable[Fact]) -> Change:
    what, before, now = key
    told = {
        (host, value): fact
        for host, of, value, fact in _by_host(lines)
        if of == what and host in hosts and value not in before
    }
    return Change(what, before, now, hosts, list(told.values()))


def _by_host(facts: Iterable[Fact]) -> Iterator[tuple[str, str, str, Fact]]:
    for fact in facts:
        if fact.kind in KINDS and fact.host is not None:
            told = _told(fact)
            if told is not None and _VALUE.fullmatch(told[1]):
                yield fact.host, *told, fact


def _seen_partly(lines: Iterable[Fact]) -> set[Teller]:
    """Hosts with channels of more or fewer processes than most: not all of their ranks' lines are here."""
    processes: dict[Teller, set[object]] = {}
    for fact in lines:
        if fact.kind != _CHANNEL:
            continue
        who = fact.host or teller(fact)
        if who is not None and path(fact):
            processes.setdefault(who, set()).add(fact.rank if fact.rank is not None else fact.data.get("writer_pid"))
    counts = {who: len(found) for who, found in processes.items()}
    most = Counter(counts.values()).most_common(1)
    return {who for who, count in counts.items() if count != most[0][0]}


def _odd(what: str, said: _Said) -> Odd | None:
    found = split((who, " + ".join(sorted(values))) for who, values in said.items())
    if found is None:
        return None
    odd, usual = set(found.odd), next(iter(found.values)).split(" + ")
    ordered = sorted(said.items(), key=lambda item: item[0] not in odd)
    lines = [(value in usual, fact) for _, values in ordered for value, fact in sorted(values.items())]
    strange = [fact for known, fact in lines if not known]
    return Odd(what, found, [*strange, *(fact for known, fact in lines if known)])


def _join(found: list[Odd], one: Odd, communicator: str) -> None:
    """The same difference in many communicators is one."""
    names = (communicator,) if communicator else ()
    for place, other in enumerate(found):
        if (other.what, other.split.values) == (one.what, one.split.values):
            found[place] = replace(other, communicators=(*other.communicators, *names))
            return
    found.append(replace(one, communicators=names))


def _told(fact: Fact) -> tuple[str, str] | None:
    """(what is compared, its value) of a line of `KINDS`."""
    if fact.kind == _CHANNEL:
        way = path(fact)
        return None if not way else (BETWEEN if way.startswith(("NET", "COLLNET")) else INSIDE, way)
    if fact.kind == "nccl.devices":
        return LINKS, _adapters(str(fact.data.get("devices", "")))
    if fact.kind == "nccl.no-ib":
        return LINKS, "no IB"
    if fact.kind == "nccl.gdr":
        return GPUDIRECT, str(fact.data.get("state", "")).lower()
    if fact.kind == "nccl.network":
        what, value = NETWORK, _network(fact)
    elif fact.kind == "nccl.nvls":
        what, value = NVLS, _nvls(fact)
    else:
        what, value = PROVIDER, str(fact.data.get("provider") or "")
    return (what, value) if value else None


def _network(fact: Fact) -> str:
    if fact.kind != "nccl.network":
        return ""
    return str(fact.data.get("network") or fact.data.get("name") or "")


def _nvls(fact: Fact) -> str:
    return str(fact.data.get("state", "")) if fact.kind == "nccl.nvls" else ""


@lru_cache(maxsize=256)
def _adapters(devices: str) -> str:
    """``2 IB``, ``1 IB, 1 RoCE``, ``1 socket``: how many of each link layer. Nodes of one kind print the same."""
    links = _PORT.findall(devices)
    if not links:
        return f"{len(_INTERFACE.findall(devices))} socket"
    return ", ".join(f"{links.count(link)} {link}" for link in sorted(set(links)))
