"""Cards and ports for traffic between nodes: EFA, InfiniBand and RoCE, their counters, MTU, firewall, names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.checks.node.machine import PCI_SOURCES, RDMA_SOURCES
from nccl_slurm.doctor.read import firewall, netdev, pci, procfs
from nccl_slurm.doctor.read.ports import Device, Port
from nccl_slurm.doctor.table import Instance, table

__all__ = ["CHECKS"]

_FOLDER = "/sys/class/infiniband"
#: Counters that tell of lost packets or of a link that went down. Traffic, congestion, and packets out of order (which
#: adaptive routing makes by design) are none.
_PORT_ERRORS = frozenset(
    [
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_xmit_discards",
        "excessive_buffer_overrun_errors",
        "local_link_integrity_errors",
        "port_rcv_remote_physical_errors",
        "local_ack_timeout_err",
        "req_transport_retries_exceeded",
        "rx_icrc_encapsulated",
        "rx_drops",
        "retrans_timeout_events",
        "unresponsive_remote_events",
        "impaired_remote_conn_events",
    ]
)
#: Of these, drops and time-outs that a peer or a burst makes too.
_SOFT = frozenset(
    [
        "rx_drops",
        "port_xmit_discards",
        "local_ack_timeout_err",
        "req_transport_retries_exceeded",
        "unresponsive_remote_events",
        "impaired_remote_conn_events",
        "rx_missed_errors",
        "rx_fifo_errors",
    ]
)
_LINK_ERRORS = frozenset(
    ["rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "rx_fifo_errors", "tx_carrier_errors"]
)
_RENDEZVOUS = (29400, 29500, 28028)
#: Of the range that Linux picks from (ip_local_port_range: 32768 to 60999).
_PICKED = 45678
_PORTS_MOST = 16
#: Gb/s from which on an Ethernet port may carry a job's traffic; those for administration are slower.
_FABRIC_GBPS = 100.0


def _efa(look: Look) -> Iterator[Finding]:
    """One device is one card. Fewer than the type has cost bandwidth on this node, and so on all."""
    row = machine.instance(look.seen)
    cards = [one for one in machine.devices(look.seen) if one.efa]
    on_bus = _efas_on_bus(look)
    wanted = None if row is None else row.efa
    if not cards and not machine.dmi(look.seen):
        raise NotObserved("no EFA card is here, and what machine this is (DMI) is not told")
    if not cards and not on_bus and not wanted:
        yield look.not_applicable("no EFA card belongs to this machine")
        return
    proof = Proof(_FOLDER, " ".join(one.name for one in cards)[:400] or "no EFA device")
    down = [(card, port) for card in cards for port in card.ports if port.state and not port.active]
    untold = _untold(cards)
    if wanted is not None and row is not None and len(cards) < wanted:
        yield _few(look, len(cards), row, proof, on_bus)
    if down:
        yield _down(look, down, len(cards))
    yield from _device_files(look, len(cards))
    if untold:
        yield look.unknown(f"states of {len(untold)} of {len(cards)} EFA cards can't be read", proof)
    if wanted is None and not down:
        yield look.unknown(f"{len(cards)} EFA cards; how many belong to this type is not in the table", proof)
    elif not down and not untold and len(cards) >= (wanted or 0):
        yield look.passed(f"{len(cards)} EFA cards, all active", proof)


def _untold(cards: Sequence[Device]) -> list[Device]:
    """Cards without a port that can be read, or with one whose state can't."""
    return [card for card in cards if not card.ports or any(port.state is None for port in card.ports)]


def _few(look: Look, have: int, row: Instance, proof: Proof, on_bus: Sequence[pci.Function] | None) -> Finding:
    proofs, wanted, kind = [proof], row.efa or 0, row.type
    if on_bus is not None:
        proofs.append(Proof("/sys/bus/pci/devices", f"{len(on_bus)} EFA functions"))
    if not _module(look):
        proofs.append(Proof("/proc/modules", "efa is not loaded"))
    values = {"count": str(have), "wanted": str(wanted), "type": kind}
    if have == 0 and on_bus == [] and row.efa_is_an_option:
        text = f"no EFA card is attached to this {kind}, which may have {wanted}: nodes reach each other by ENA alone"
        return look.warn("P2", text, *proofs, values=values)
    if have == 0:
        return look.fail("P0", f"none of the {wanted} EFA cards of {kind} is there", *proofs, values=values)
    return look.fail("P1", f"{have} of the {wanted} EFA cards of {kind} are there", *proofs, values=values)


def _down(look: Look, down: Sequence[tuple[Device, Port]], cards: int) -> Finding:
    proofs = [Proof(f"{_FOLDER}/{card.name}/ports/{port.number}/state", str(port.state)) for card, port in down]
    names = [card.name for card, _ in down]
    said = "P0" if len(down) >= cards else "P1"
    return look.fail("P0" if said == "P0" else "P1", f"{len(down)} EFA cards are not active", *proofs, device=names[0])


def _device_files(look: Look, cards: int) -> Iterator[Finding]:
    """Programs reach a card by its /dev/infiniband/uverbsN."""
    try:
        names = look.seen.present("uverbs").values()
    except NotObserved:
        return
    files = [name for text in names for name in text.split() if name.startswith("uverbs")]
    if len(files) < cards:
        proof = Proof("ls /dev/infiniband", " ".join(files)[:300] or "no uverbs")
        yield look.fail("P1", "EFA cards have no device file, so no program can use them", proof, count=str(len(files)))


def _efas_on_bus(look: Look) -> list[pci.Function] | None:
    try:
        return pci.efas(machine.functions(look.seen, "pci-devices"))
    except NotObserved:
        return None


def _module(look: Look) -> bool:
    try:
        return "efa" in procfs.modules(look.seen.text("kernel-modules"))
    except NotObserved:
        return True


def _ports(look: Look) -> Iterator[Finding]:
    """InfiniBand and RoCE. A port may be unused: of InfiniBand's one that is switched off, or the second of a card."""
    cards = [one for one in machine.devices(look.seen, "rdma-cards") if not one.efa]
    on_bus = machine.rdma_on_bus(look.seen)
    if not cards and not on_bus:
        if not machine.dmi(look.seen):
            raise NotObserved("no InfiniBand or RoCE port is here, and what machine this is (DMI) is not told")
        yield look.not_applicable("no InfiniBand or RoCE port is here")
        return
    undriven, untold = list(_undriven(look, cards, on_bus)), _untold(cards)
    yield from undriven
    if untold:
        yield look.unknown(f"states of {len(untold)} of {len(cards)} cards can't be read: {untold[0].name} ...")
    yield from _states(
        look, [(card, port) for card in cards for port in card.ports if port.state], not undriven and not untold
    )


def _undriven(look: Look, cards: Sequence[Device], on_bus: Sequence[pci.Function]) -> Iterator[Finding]:
    """A card on the bus that is no RDMA device: its driver, or the RDMA part of it, is not loaded or gave it up."""
    bare = [one for one in on_bus if one.driver is None]
    fabric = [card for card in cards if not any(port.layer == "Ethernet" for port in card.ports)]
    gone = max(len(on_bus) - len(fabric), len(bare))
    if gone <= 0:
        return
    proofs = [Proof(f"/sys/bus/pci/devices/{one.slot}", f"driver {one.driver or 'none'}") for one in bare or on_bus]
    proofs.insert(0, Proof(_FOLDER, " ".join(card.name for card in cards)[:300] or "no device"))
    why = "no driver holds them" if bare else "their driver's RDMA part is not there"
    kinds = " and ".join(sorted({"RoCE" if one.ethernet else "InfiniBand" for one in on_bus}))
    text = f"{gone} of {len(on_bus)} {kinds} cards on the bus are no RDMA device: {why}"
    if all(one.ethernet for one in bare) and len({one.slot[:-2] for one in bare}) == 1:
        yield look.warn("P2", f"{text}, if they are meant to be", *proofs, count=str(gone))
    else:
        fast = [one for one in cards if any(port.gigabits >= _FABRIC_GBPS for port in one.ports)]
        yield look.fail("P1" if fabric or len(fast) >= gone else "P0", text, *proofs, count=str(gone))


def _states(look: Look, ports: Sequence[tuple[Device, Port]], whole: bool) -> Iterator[Finding]:
    """``ports``: those whose state is told. ``whole``: these are all."""
    down = [(card, port) for card, port in ports if not port.active]
    active = [card for card, port in ports if port.active]
    dead = [pair for pair in down if _is_of_the_dead(pair, ports)]
    gpus = _gpus_on_bus(look)
    wrong = [pair for pair in down if pair not in dead and not _may_be_unused(pair, ports, gpus)]
    unused = [pair for pair in down if pair not in wrong and pair not in dead]
    if ports and not active:
        yield look.fail("P0", "no InfiniBand or RoCE port is active", *_port_proofs(down), device=ports[0][0].name)
    elif dead:
        text = f"none of {len(dead)} InfiniBand ports of one kind is active, and fewer others are"
        yield look.fail("P0", text, *_port_proofs(dead), device=dead[0][0].name)
    if wrong and active:
        text = f"{len(wrong)} InfiniBand ports are not active"
        yield look.fail("P1", text, *_port_proofs(wrong), device=wrong[0][0].name)
    if unused and active:
        kinds = sorted({"RoCE" if port.layer == "Ethernet" else "InfiniBand" for _, port in unused})
        text = f"{len(unused)} {' and '.join(kinds)} ports are not active, if they are meant to be"
        yield look.warn("P2", text, *_port_proofs(unused))
    yield from _rates(look, [(card, port) for card, port in ports if port.active])
    if whole and not wrong and not dead and active:
        yield look.passed(f"{len(active)} of {len(ports)} ports are active")


_Place = tuple[Device, Port]


def _alike(pair: _Place, ports: Sequence[_Place]) -> list[_Place]:
    """Ports of the same model of card, and itself."""
    card, port = pair
    return [(one, other) for one, other in ports if (one.model, other.layer) == (card.model, port.layer)]


def _is_of_the_dead(pair: _Place, ports: Sequence[_Place]) -> bool:
    """Of several InfiniBand ports of one model, none of which is active, while fewer of others are that may carry a
    job's traffic: a port for administration is no fabric."""
    mine = _alike(pair, ports)
    others = [port for _, port in ports if port.active and (_is_infiniband(port) or port.gigabits >= _FABRIC_GBPS)]
    whole = len(mine) > 1 and not any(port.active for _, port in mine)
    return whole and _is_infiniband(pair[1]) and len(mine) > len(others)


def _is_infiniband(port: Port) -> bool:
    return port.layer == "InfiniBand"


def _may_be_unused(pair: _Place, ports: Sequence[_Place], gpus: int) -> bool:
    """Without a cable, or switched off. A port that looks for its other end (Polling) has one as a rule, but for the
    second of a card whose first is in use, for a model of which none is, and where as many of it are as there are
    GPUs."""
    card, port = pair
    if port.layer == "Ethernet" or port.physical == "Disabled":
        return True
    place, active = card.slot.rpartition(".")[0], [one for one, other in ports if other.active]
    beside = any(one.name == card.name or (place and one.slot.rpartition(".")[0] == place) for one in active)
    alike = sum(other.active for _, other in _alike(pair, ports))
    spare = alike >= gpus > 0 or (not alike and any(other.active and _is_infiniband(other) for _, other in ports))
    return port.physical == "Polling" and (beside or spare)


def _gpus_on_bus(look: Look) -> int:
    """0 also where it can't be read."""
    try:
        return len(pci.gpus(machine.functions(look.seen)))
    except NotObserved:
        return 0


def _rates(look: Look, ports: Sequence[tuple[Device, Port]]) -> Iterator[Finding]:
    """Among ports of one model of card: one that trained to a lower rate, or with fewer lanes, has a bad cable or plug.
    Several that are alike, and ports of which the model is not told, may be another network's (storage)."""
    for kind in sorted({(port.layer or "", card.model) for card, port in ports}):
        mine = [(card, port) for card, port in ports if (port.layer or "", card.model) == kind and port.gigabits]
        if len(mine) < 3:
            continue
        common = Counter((port.gigabits, _lanes(port)) for _, port in mine).most_common(1)[0]
        (rate, lanes), count = common
        slow = [(card, port) for card, port in mine if port.gigabits < rate]
        if slow and count * 2 > len(mine):
            narrow = any(_lanes(port) < lanes for _, port in slow)
            sure = bool(kind[1]) and (narrow or len(slow) == 1)
            text = f"{len(slow)} ports run slower than the others ({rate:g} Gb/s)"
            more = "" if sure else ", if they are meant to be as fast"
            yield look.warn("P1" if sure else "P2", text + more, *_port_proofs(slow), device=slow[0][0].name)


def _lanes(port: Port) -> int:
    """``200 Gb/sec (4X HDR)`` → 4."""
    found = re.search(r"\(([0-9]{1,2})X\b", port.rate or "")
    return int(found.group(1)) if found else 0


def _port_proofs(ports: Iterable[tuple[Device, Port]]) -> list[Proof]:
    return [
        Proof(f"{_FOLDER}/{card.name}/ports/{port.number}", f"{port.state}, {port.physical}, {port.rate}, {port.layer}")
        for card, port in ports
    ]


def _counters(look: Look) -> Iterator[Finding]:
    """Counters run since boot: what counts is how many an hour, and which of the ports."""
    hours = max((look.seen.at - look.seen.boot_time) / 3600.0, 1.0) if look.seen.boot_time else 0.0
    if not hours:
        raise NotObserved("since when the node runs is not known: counters since boot say nothing")
    ports, links = _of_ports(look), list(_of_links(look))
    if ports is None:
        yield look.unknown("counters of RDMA cards can't be read")
    wrong = [
        Proof(f"{where}/{name}", f"{value} in {hours:.0f} h")
        for where, name, value in (*(ports or ()), *links)
        if value / hours >= table()["counter-per-hour"]
    ]
    if wrong:
        yield _losing(look, wrong)
    elif ports is not None and (ports or links):
        read = Proof(_FOLDER, f"{len(ports or ()) + len(links)} counters over {hours:.0f} h")
        yield look.passed("no port whose counters were read loses or repeats packets", read)
    elif ports is not None:
        raise NotObserved("no counters of ports or interfaces are told")


def _losing(look: Look, wrong: Sequence[Proof]) -> Finding:
    names = sorted({proof.source.rsplit("/", 1)[-1] for proof in wrong})
    hard = [name for name in names if name not in _SOFT]
    text = f"ports lose or repeat packets: {', '.join((hard or names)[:5])}"
    interface = next((one.source.split("/")[4] for one in wrong if one.source.startswith("/sys/class/net/")), "")
    return look.warn("P1" if hard else "P2", text, *wrong, interface=interface)


def _of_ports(look: Look) -> list[tuple[str, str, int]] | None:
    """None: there are cards, and their counters can't be read."""
    try:
        cards = machine.devices(look.seen, "rdma-counters")
    except NotObserved:
        return None
    found = [
        (f"{_FOLDER}/{card.name}/{path.rpartition('/')[0]}", path.rpartition("/")[2], value)
        for card in cards
        for path, value in card.counters.items()
        if path.rpartition("/")[2] in _PORT_ERRORS
    ]
    return found if found or not (cards or _on_bus(look)) else None


def _on_bus(look: Look) -> bool:
    """Whether the bus has InfiniBand cards, or can't be read."""
    try:
        return bool(machine.rdma_on_bus(look.seen))
    except NotObserved:
        return True


def _of_links(look: Look) -> Iterator[tuple[str, str, int]]:
    for one in _interfaces(look, "link-counters"):
        for name, value in one.statistics.items():
            if name in _LINK_ERRORS:
                yield f"/sys/class/net/{one.name}/statistics", name, value


def _interfaces(look: Look, *keys: str) -> list[netdev.Interface]:
    """Those of a real device, and up. Empty where they can't be read."""
    files: dict[str, str] = {}
    for key in ("links", "link-drivers", *keys):
        try:
            files.update(look.seen.present(key))
        except NotObserved:
            if key == "links":
                return []
    return [one for one in netdev.interfaces(files) if one.driver is not None and one.state != "down"]


def _mtu(look: Look) -> Iterator[Finding]:
    """Inside AWS large frames cost nothing; elsewhere what is right depends on the network, so nodes are compared."""
    found = [one for one in _interfaces(look) if one.mtu is not None and one.ethernet]
    if not found:
        raise NotObserved("no network interface of a real device is up, or none can be read")
    told = ", ".join(f"{one.name} {one.mtu}" for one in found[:8])
    least = table()["mtu-bytes"]
    small = [one for one in found if machine.is_aws(look.seen) and (one.mtu or 0) < least]
    if small:
        proofs = [Proof(f"/sys/class/net/{one.name}/mtu", str(one.mtu)) for one in small]
        yield look.warn(
            "P2", f"MTU below {least:g} on {', '.join(one.name for one in small[:4])}", *proofs, interface=small[0].name
        )
    elif len({one.mtu for one in found}) > 1 and not machine.is_aws(look.seen):
        yield look.passed(f"interfaces differ in their MTU: {told}")
    else:
        yield look.passed(f"MTU {found[0].mtu}", Proof("/sys/class/net/*/mtu", told))


# firewall


def _firewall(look: Look) -> Iterator[Finding]:
    """Of a new connection to the ports in use, and to one that the kernel picks, as NCCL's are."""
    rules, unseen = _rules(look)
    ports = _in_use(look)
    own = look.seen.slurm.get("NodeAddr", "")
    asked = [*ports[:_PORTS_MOST], _PICKED]
    found = [stop for port in asked for one in rules for stop in firewall.stops(one, port, own)]
    found = list(dict.fromkeys(sorted(found, key=lambda one: not one.sure)))
    proofs = [Proof("nft list ruleset / iptables-save", f"{one.chain}: {one.line[:200]}") for one in found]
    if any(one.sure for one in found):
        shown = ", ".join(map(str, ports[:6]))
        text = "the firewall stops traffic that no other rule lets in"
        yield look.warn("P1", text, *proofs, port=str(ports[0]), ports=shown)
    elif found:
        text = "the firewall stops what is not let in by address or interface: whether a job's peers are is not known"
        yield look.unknown(text, *proofs)
    elif unseen:
        yield look.unknown(unseen)
    else:
        count = sum(len(lines) for one in rules for lines in one.lines.values())
        yield look.passed(f"no rule of the firewall stops the ports in use ({count} rules)")


#: The two kinds of iptables keep rules of their own, each of which holds.
_FIREWALLS = (
    ("firewall-nft", firewall.in_nft),
    ("firewall-iptables", firewall.in_iptables),
    ("firewall-legacy", firewall.in_iptables),
)
#: Of iptables-nft-save, on standard error (iptables/xshared.c).
_LEGACY = re.compile(r"^# Warning: iptables-legacy tables present", re.MULTILINE)


def _rules(look: Look) -> tuple[list[firewall.Ruleset], str]:
    """Those that are read whole, and why there are more, else empty. Raises where none can be read."""
    found: dict[str, firewall.Ruleset] = {}
    unseen, legacy = "", False
    for key, parse in _FIREWALLS:
        try:
            output = look.seen.command(key, part=True)
        except NotObserved:
            continue
        legacy = legacy or bool(_LEGACY.search(output.err))
        if output.cut:
            unseen = "the firewall has more rules than were read"
        elif output.rc == 0:
            found[key] = parse(output.out)
    if legacy and "firewall-legacy" not in found:
        unseen = "the firewall has rules of iptables-legacy, which can't be read"
    if not found and not unseen:
        why = "neither nft nor iptables-save" + (f", or no right: {look.seen.more_rights}" if look.seen.uid else "")
        raise NotObserved(f"rules of the firewall can't be read ({why})")
    return list(found.values()), unseen


def _in_use(look: Look) -> list[int]:
    """Ports on which ranks listen, and those where they meet; else the usual ones."""
    try:
        rows: Sequence[Mapping[str, object]] = machine.ranks(look.seen)
    except NotObserved:
        rows = ()
    ports: set[int] = set()
    for row in rows:
        listens, port = row.get("listens"), machine.fields(row.get("environment")).get("MASTER_PORT", "")
        ports.update(one for one in (listens if isinstance(listens, list) else ()) if isinstance(one, int))
        if str(port).isascii() and str(port).isdigit():
            ports.add(int(port))
    return sorted(ports) or list(_RENDEZVOUS)


# names


#: The resolver gave no answer, whatever the name: EAI_AGAIN, EAI_FAIL (netdb.h).
_RESOLVER = (-3, -4)


def _dns(look: Look) -> Iterator[Finding]:
    told = machine.reader(look.seen, "names")
    rows = {name: one for name, one in machine.fields(told.get("names")).items() if isinstance(one, dict)}
    if not rows:
        machine.ranks(look.seen)  # raises where there are some that can't be looked at
        yield look.not_applicable("no rank here goes by a name (MASTER_ADDR)")
        return
    for name, one in rows.items():
        yield from _name(look, name, one, told.get("asked") is not None)
    if told.get("more"):
        yield look.unknown(f"ranks here go by {told['more']} more names than are resolved")


def _name(look: Look, name: str, one: Mapping[str, object], asked: bool) -> Iterator[Finding]:
    """A job may go by any name: with none asked for, one that nobody knows is its own fault until it is looked at."""
    shown, seconds, jobs = name[:120], one.get("seconds"), one.get("jobs")
    job = str(jobs[0])[:20] if isinstance(jobs, list) and jobs else ""
    values = {"name": shown, **({"job": job} if job else {})}
    if one.get("why"):
        proof = Proof(f"getaddrinfo {shown}", str(one["why"])[:200])
        whose = f" (MASTER_ADDR of job {job})" if job else ""
        if not asked and one.get("code") not in _RESOLVER:
            text = f"{shown}{whose} does not resolve: whether such a host is meant to be is not known"
            yield look.warn("P2", text, proof, values=values)
        else:
            yield look.fail("P0", f"{shown}{whose} does not resolve", proof, values=values)
        return
    addresses = one.get("addresses")
    own = isinstance(addresses, list) and addresses and all(str(a).startswith(("127.", "::1")) for a in addresses)
    proof = Proof(f"getaddrinfo {shown}", f"{addresses} in {seconds} s")
    mine = shown.split(".")[0] in (look.seen.node, look.seen.host.split(".")[0])
    if own and mine:
        yield look.passed(f"{shown} resolves to this node's own loopback, as its own name may", proof)
    elif own and not shown.startswith(("127.", "localhost", "::1")):
        text = f"{shown} resolves to this node's own loopback: ranks on other nodes meet nobody"
        yield look.fail("P0", text, proof, values=values)
    elif isinstance(seconds, (int, float)) and seconds >= table()["dns-s"]:
        yield look.warn("P2", f"{shown} resolves slowly", proof, values=values)
    else:
        yield look.passed(f"{shown} resolves", proof)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.efa-cards",
        "All EFA cards are there and active",
        (*RDMA_SOURCES, *PCI_SOURCES, "pci-devices", "dmi", "kernel-modules", "uverbs"),
        _efa,
        explains=("node.libfabric", "node.ofi-plugin", "node.peermem"),
    ),
    NodeCheck(
        "node.ib-ports",
        "InfiniBand and RoCE ports are active",
        (*RDMA_SOURCES, "rdma-cards", *PCI_SOURCES, "pci-devices", "dmi"),
        _ports,
        explains=("node.peermem",),
    ),
    NodeCheck(
        "node.net-counters",
        "Ports lose no packets",
        (*RDMA_SOURCES, *PCI_SOURCES, "pci-devices", "rdma-counters", "links", "link-drivers", "link-counters"),
        _counters,
    ),
    NodeCheck("node.mtu", "Interfaces take large frames", ("links", "link-drivers", "dmi"), _mtu),
    NodeCheck("node.dns", "Names that ranks go by resolve", ("names", "ranks"), _dns),
    NodeCheck(
        "node.firewall",
        "The host's firewall lets a job through",
        (*dict(_FIREWALLS), "ranks"),
        _firewall,
    ),
)
