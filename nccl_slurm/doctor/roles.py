"""Which nodes certainly run no controller, database or login: a reboot is suggested for those alone.

A host has several names and a node may be known by an address, so names and addresses are compared both, those in
brackets of slurm.conf (``SlurmctldHost=ctl(10.0.0.7)``) too. What can't be resolved here is not sure.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from nccl_slurm.recommend.site import short
from nccl_slurm.scheduler.client import NodeState

__all__ = ["addresses_of", "compute_nodes", "controller_hosts", "database_hosts"]

#: Name or address → addresses; empty where it can't be resolved.
Resolved = Mapping[str, frozenset[str]]

_CONTROLLER = re.compile(r"SlurmctldHost|ControlMachine|ControlAddr|BackupController|BackupAddr|SlurmctldAddr")
_DATABASE = re.compile(
    r"(?:AccountingStorage|Dbd|Storage|JobComp)(?:Backup)?(?:Host|Addr)|AccountingStorageExternalHost"
)
_RESOLVE_S = 5.0
_AT_ONCE = 32
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def controller_hosts(settings: Mapping[str, Sequence[str]], pinged: Iterable[str] = ()) -> list[tuple[str, ...]]:
    """Of ``scontrol show config``: of each its names and addresses. ``pinged``: names in ``scontrol ping``."""
    found = list(_hosts(settings, _CONTROLLER))
    known = {one for each in found for one in each}
    return [*found, *((one,) for one in pinged if one not in known)]


def database_hosts(settings: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    return list(_hosts(settings, _DATABASE))


def _hosts(settings: Mapping[str, Sequence[str]], keys: re.Pattern[str]) -> Iterator[tuple[str, ...]]:
    """``ctl(10.0.0.7)``, ``db1:6819,db2``."""
    for key, values in settings.items():
        for one in re.split(r"[,\s]+", " ".join(values)) if keys.fullmatch(key) else ():
            name, _, address = one.rstrip(")").partition("(")
            if named := tuple(filter(None, (_plain(name), _plain(address)))):
                yield named


def _plain(host: str) -> str:
    """Without a port; an IPv6 address has several colons."""
    return host.partition(":")[0] if host.count(":") == 1 else host.strip("[]")


def compute_nodes(
    nodes: Iterable[NodeState],
    controllers: Collection[Sequence[str]],
    others: Collection[str],
    resolve: Callable[[Collection[str]], Resolved],
) -> frozenset[str]:
    """Empty where a controller, or one of ``others``, has no address that is known here: any node may be its host by
    another name."""
    own = {node.name: [one for one in (node.name, node.hostname, node.address) if one] for node in nodes}
    taken = {one for each in controllers for one in each} | set(others)
    known = resolve({one for each in own.values() for one in each} | taken)
    hosts = [*controllers, *((one,) for one in others)]
    if not controllers or not all(any(known.get(one) for one in each) for each in hosts):
        return frozenset()
    names = {short(one) for one in taken}
    addresses = frozenset().union(*(known.get(one, frozenset()) for one in taken))
    return frozenset(name for name, hosts in own.items() if _is_apart(hosts, names, addresses, known))


def _is_apart(hosts: Sequence[str], names: Collection[str], addresses: frozenset[str], known: Resolved) -> bool:
    mine = frozenset().union(*(known.get(one, frozenset()) for one in hosts))
    return bool(mine) and mine.isdisjoint(addresses) and not any(short(one) in names for one in hosts)


def addresses_of(hosts: Collection[str], limit_s: float = _RESOLVE_S) -> dict[str, frozenset[str]]:
    """As this host resolves them, within ``limit_s``. What is loopback is this host: all its addresses."""
    found: dict[str, frozenset[str]] = {}
    left = list(hosts)

    def work() -> None:
        while left:
            try:
                host = left.pop()
            except IndexError:
                return
            found[host] = _resolved(host)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(left)))]
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(found)


def _resolved(host: str) -> frozenset[str]:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    told = {str(row[4][0]).partition("%")[0] for row in rows}
    return frozenset(told | _here() if any(ipaddress.ip_address(one).is_loopback for one in told) else told)


def _here() -> set[str]:
    """IPv4 addresses of this host, by the kernel's routes (proc(5))."""
    try:
        with open("/proc/net/fib_trie", encoding="ascii", errors="replace") as file:
            return set(_LOCAL.findall(file.read(1 << 22)))
    except OSError:
        return set()
