"""Slurm's node name → EC2 instance id, exactly or not at all. Pure.

By address (NodeAddr, or the one in a name ``ip-10-1-2-3``) in resource_config.json, and by address or first label of
PrivateDnsHostname in the API's list. No name is ever matched by a part of it: ``ip-10-0-0-4`` is not ``ip-10-0-0-40``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nccl_slurm.doctor.aws.cluster import Instance
from nccl_slurm.doctor.aws.place import Member
from nccl_slurm.recommend.site import short

__all__ = ["Map", "NamedNode", "address_in", "join"]

_IN_NAME = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})\Z")


class NamedNode(Protocol):
    """A node of Slurm's, as `scheduler.client.NodeState` is one."""

    @property
    def name(self) -> str: ...
    @property
    def hostname(self) -> str | None: ...
    @property
    def address(self) -> str | None: ...


@dataclass(frozen=True)
class Map:
    """``instance`` by node; ``stale``: node → (by the file, by the API) where they differ: the API counts.
    ``doubled``: instance → nodes that claim it; none of them is in ``instance``. ``unknown``: nodes without one."""

    instance: Mapping[str, str] = field(default_factory=dict)
    stale: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    doubled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    def node(self, instance: str | None) -> str | None:
        return self._by_instance.get(instance or "")

    @property
    def _by_instance(self) -> Mapping[str, str]:
        return {instance: node for node, instance in self.instance.items()}


def join(nodes: Iterable[NamedNode], members: Sequence[Member] | None, instances: Sequence[Instance]) -> Map:
    by_file = _once((member.address, member.instance) for member in members or ())
    by_host = _once((label, one.id) for one in instances for label in _labels(one))
    found: dict[str, str] = {}
    stale: dict[str, tuple[str, str]] = {}
    unknown = []
    for node in nodes:
        told = _first(by_file, [address for address in _addresses(node) if address])
        asked = _first(by_host, [*_addresses(node), *_hosts(node)])
        if told and asked and told != asked:
            stale[node.name] = (told, asked)
        if chosen := asked or told:
            found[node.name] = chosen
        else:
            unknown.append(node.name)
    doubled = {one: nodes for one, nodes in _claims(found).items() if len(nodes) > 1}
    sure = {node: one for node, one in found.items() if one not in doubled}
    return Map(sure, stale, doubled, tuple(unknown))


def address_in(name: str | None) -> str | None:
    """``10.1.2.3`` of ``ip-10-1-2-3`` or ``ip-10-1-2-3.us-west-2.compute.internal``, or of an address itself."""
    text = name or ""
    found = _IN_NAME.match(text.partition(".")[0])
    try:
        return str(ipaddress.IPv4Address(".".join(found.groups()) if found else text))
    except ValueError:
        return None


def _addresses(node: NamedNode) -> list[str]:
    told = [address_in(node.address), address_in(node.hostname), address_in(node.name)]
    return list(dict.fromkeys(one for one in told if one))


def _hosts(node: NamedNode) -> list[str]:
    """Names without their domain, in lower case; no addresses."""
    return [short(name) for name in (node.hostname, node.name) if name and not address_in(name)]


def _labels(instance: Instance) -> list[str]:
    address = instance.address or address_in(instance.host)
    host = short(instance.host) if instance.host and not address_in(instance.host) else None
    return [label for label in (address, host) if label]


def _once(pairs: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    """What names two instances names none."""
    found: dict[str, str] = {}
    twice = set()
    for key, value in pairs:
        if key and found.setdefault(key, value) != value:
            twice.add(key)
    return {key: value for key, value in found.items() if key not in twice}


def _first(known: Mapping[str, str], keys: Iterable[str]) -> str | None:
    return next((known[key] for key in keys if key in known), None)


def _claims(found: Mapping[str, str]) -> dict[str, list[str]]:
    claims: dict[str, list[str]] = {}
    for node, instance in found.items():
        claims.setdefault(instance, []).append(node)
    return claims
