"""Whether security groups let nodes of a cluster reach each other. Pure.

An interface has the rules of all its groups added up (EC2, security groups): one group that allows it is enough, and
the other side may be any group that the other interface has. EFA's traffic needs protocol -1 by group, both ways; a
rule by addresses does not carry it (EC2 User Guide, EFA). `OverrideVpcConfig` takes the place of the cluster's groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from nccl_slurm.doctor.aws.cluster import Cluster, Group
from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import load
from nccl_slurm.doctor.aws.shape import AwsCheck, call, several
from nccl_slurm.doctor.check import Finding, NotObserved, Proof

__all__ = ["SECURITY_GROUP", "Rules", "allows", "read_rules"]

_ID = "aws.security-group"
_ALL, _TCP = "-1", ("tcp", "6")
#: P, G and Trn types, Inferentia; controllers and logins are of others.
_ACCELERATED = re.compile(r"ml\.(?:p|g|gr|trn|inf)[0-9]")
_PORTS = (1024, 65535)
_IN, _OUT = "IpPermissions", "IpPermissionsEgress"


@dataclass(frozen=True)
class Rules:
    """One direction of one security group: groups that all traffic, and all of TCP's upper ports, is allowed with.

    ``anywhere``: TCP's upper ports with every IPv4 address; ``addresses``: rules by other address ranges; ``some``:
    groups that fewer of TCP's ports are allowed with."""

    everything: frozenset[str]
    tcp: frozenset[str]
    anywhere: bool
    addresses: tuple[str, ...]
    some: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Side:
    """Instance groups that have the same security groups. ``alone``: one instance without EFA, a login's as a rule: it
    has nobody in it to reach. ``computes``: some have GPUs or other accelerators."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    efa: bool
    alone: bool = False
    computes: bool = True


def read_rules(group: Mapping[str, Any], direction: str) -> Rules:
    """``direction``: IpPermissions or IpPermissionsEgress of DescribeSecurityGroups."""
    everything: set[str] = set()
    tcp: set[str] = set()
    some: set[str] = set()
    addresses: list[str] = []
    anywhere = False
    for rule in group.get(direction) or ():
        protocol = str(rule.get("IpProtocol"))
        peers = {str(pair["GroupId"]) for pair in rule.get("UserIdGroupPairs") or () if pair.get("GroupId")}
        everything |= peers if protocol == _ALL else set()
        wide = protocol == _ALL or (protocol in _TCP and _wide(rule))
        tcp |= peers if wide else set()
        some |= peers if protocol in _TCP and not wide else set()
        ranges = _ranges(rule)
        anywhere = anywhere or (wide and "0.0.0.0/0" in ranges)
        addresses += [f"{protocol} {one}" for one in ranges if protocol == _ALL or protocol in _TCP]
    return Rules(frozenset(everything), frozenset(tcp), anywhere, tuple(addresses), frozenset(some))


def _ranges(rule: Mapping[str, Any]) -> list[str]:
    keys = (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6"), ("PrefixListIds", "PrefixListId"))
    return [str(one[key]) for name, key in keys for one in rule.get(name) or () if one.get(key)]


def _wide(rule: Mapping[str, Any]) -> bool:
    low, high = rule.get("FromPort"), rule.get("ToPort")
    return isinstance(low, int) and isinstance(high, int) and low <= _PORTS[0] and high >= _PORTS[1]


def allows(rules: Iterable[Rules], peers: Sequence[str], *, efa: bool) -> bool:
    """Whether any of these groups' rules lets traffic through with an interface that has the groups ``peers``."""
    if efa:
        return any(not rule.everything.isdisjoint(peers) for rule in rules)
    return any(rule.anywhere or not rule.tcp.isdisjoint(peers) for rule in rules)


def _groups(aws: Aws) -> Iterator[Finding]:
    cluster = aws.cluster()
    sides = _sides(cluster)
    if not sides:
        if cluster.vpc is None and cluster.groups:
            yield Finding(_ID, "NOT-APPLICABLE", "the cluster has no VpcConfig: it runs in the service's own network")
            return
        raise NotObserved("DescribeCluster told no instance group, or no security group")
    known = aws.security_groups([one for side in sides for one in side.ids])
    found = [finding for side in sides for finding in _within(aws, side, known)]
    found += [finding for one, two in permutations(sides, 2) for finding in _between(aws, one, two, known)]
    yield from found
    if not found:
        ids = sorted({one for side in sides for one in side.ids})
        text = f"nodes may reach each other, both ways, by {several(ids)}"
        yield Finding(_ID, "PASS", text, values={"group_id": " ".join(ids)})


def _sides(cluster: Cluster) -> list[_Side]:
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in cluster.groups:
        vpc = cluster.vpc_of(group)
        if vpc and vpc.groups:
            found.setdefault(tuple(sorted(set(vpc.groups))), []).append(group)
    return [_side(ids, groups) for ids, groups in found.items()]


def _side(ids: tuple[str, ...], groups: Sequence[Group]) -> _Side:
    efa = any(map(_has_efa, groups))
    told = [(one.current, one.target) for one in groups]
    most = sum(max(current or 0, target or 0) for current, target in told)
    alone = not efa and most <= 1 and all(None not in each for each in told)
    computes = any(_ACCELERATED.match(kind) for one in groups for kind in one.kinds) or not any(g.kinds for g in groups)
    return _Side(ids, tuple(one.name for one in groups), efa, alone, computes or efa)


def _has_efa(group: Group) -> bool:
    return group.efa or load().has_efa(group.kinds)


def _within(aws: Aws, side: _Side, known: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for direction in () if side.alone else (_IN, _OUT):
        yield from _judge(aws, side, side, direction, known, efa=side.efa)


def _between(aws: Aws, one: _Side, two: _Side, known: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """From ``one`` to ``two``: what one side may send and the other may take."""
    efa = one.efa and two.efa
    yield from _judge(aws, one, two, _OUT, known, efa=efa)
    yield from _judge(aws, two, one, _IN, known, efa=efa)


def _judge(
    aws: Aws, side: _Side, peer: _Side, direction: str, known: Mapping[str, Mapping[str, Any]], *, efa: bool
) -> Iterator[Finding]:
    rules = [read_rules(known[one], direction) for one in side.ids if one in known]
    if allows(rules, peer.ids, efa=efa):
        return
    missing = [one for one in side.ids if one not in known]
    if missing:
        yield Finding(_ID, "UNKNOWN", f"{_what(side, peer, direction)}: EC2 told nothing of {several(missing)}")
    elif not efa and side is not peer and any(not rule.some.isdisjoint(peer.ids) for rule in rules):
        text = f"{_what(side, peer, direction)}: allowed on some of TCP's ports alone, which are not judged"
        yield Finding(_ID, "UNKNOWN", text)
    elif not efa and any(rule.addresses for rule in rules):
        text = f"{_what(side, peer, direction)}: allowed by address ranges alone, which are not judged"
        yield Finding(_ID, "UNKNOWN", text)
    else:
        yield _lacks(aws, side, peer, direction, known, efa=efa)


def _what(side: _Side, peer: _Side, direction: str) -> str:
    way = "traffic to" if direction == _OUT else "traffic from"
    other = "each other" if side is peer else several(list(peer.names))
    return f"{several(list(side.names))}, {way} {other}"


def _lacks(
    aws: Aws, side: _Side, peer: _Side, direction: str, known: Mapping[str, Mapping[str, Any]], *, efa: bool
) -> Finding:
    """Nodes of one side can't work at all without it; between two sides only jobs that span both are hit, and those
    that don't compute may have nothing to say to each other."""
    wanted = "protocol -1" if efa else "protocol -1, or all TCP ports,"
    way = "outbound" if direction == _OUT else "inbound"
    text = f"{_what(side, peer, direction)}: no {way} rule of {several(list(side.ids))} allows {wanted} with "
    text += "one of these groups" if side is peer else several(list(peer.ids))
    values = {"group_id": side.ids[0], "peer_id": peer.ids[0], "direction": way}
    proofs = tuple(_proof(aws, one, known[one], direction) for one in side.ids)
    sure = side is peer and side.computes
    return Finding(_ID, "FAIL" if sure else "WARN", text, "P0" if sure else "P1", proofs=proofs, values=values)


def _proof(aws: Aws, number: str, group: Mapping[str, Any], direction: str) -> Proof:
    rules = [
        f"{rule.get('IpProtocol')} {[pair.get('GroupId') for pair in rule.get('UserIdGroupPairs') or ()]}"
        for rule in group.get(direction) or ()
    ]
    line = f"{direction}: {'; '.join(rules) or 'no rule'}"
    return call(aws, "ec2", "describe-security-groups", line, "--group-ids", number)


SECURITY_GROUP = AwsCheck(_ID, "rules between nodes: the sum of their groups, both ways, by protocol", _groups)
