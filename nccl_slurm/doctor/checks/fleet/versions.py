"""Versions of everything that must be alike on all nodes of a job, with the odd ones out.

Nodes are compared with nodes of their own machine type where hardware decides (firmware, MTU, drivers: a machine
image is of a type), else with all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from nccl_slurm.doctor.check import Area, Finding, NotObserved, Priority, Proof, Status
from nccl_slurm.doctor.checks.job.ranks import Seen, of_node, programs
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.observation import Fleet, Observation
from nccl_slurm.doctor.read import efa, netdev, procfs, services, smi
from nccl_slurm.doctor.read.libraries import Library, version_in_file
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS", "ITEMS", "Item", "matrix"]

_ID = "fleet.versions"
_SHOWN = 400
#: Every node that was read has one.
_ALWAYS = "kernel"
_SOURCES = (
    *("nvidia-driver", "nvidia-smi", "ranks", "slurmd-version", "os-release", "efa-installed", "efa-module"),
    *("rdma-firmware", "links", "link-drivers", "container", "dmi"),
)


@dataclass(frozen=True)
class Item:
    """``read`` raises NotObserved or gives None where a node does not tell. ``library``, in its place: a kind that
    ranks map, compared within each program. ``by``: compare only nodes with the same machine type (``board``: and the
    same GPUs), or with ranks of the same job. ``priority`` of a difference; ``fatal``: with it a job can't run."""

    name: str
    priority: Priority
    read: Callable[[Observation], str | None] | None = None
    by: Literal["", "type", "board", "job"] = ""
    fatal: bool = False
    library: str = ""


def _driver(seen: Observation) -> str | None:
    found = procfs.driver(seen.text("nvidia-driver"))
    return None if found is None else found.version + (" (open)" if found.open else "")


def _cuda(seen: Observation) -> str | None:
    return smi.read(seen.command("nvidia-smi").out).cuda


def _vbios(seen: Observation) -> str | None:
    return _joined(gpu.vbios for gpu in machine.gpus(seen))


def _boards(seen: Observation) -> str:
    """One kind of machine may have other GPUs in it."""
    try:
        return _joined(gpu.name for gpu in machine.gpus(seen)) or ""
    except NotObserved:
        return ""


def _power(seen: Observation) -> str | None:
    """By the boards' own defaults: nodes of one machine type may have several boards."""
    told = ((gpu.power_limit, gpu.power_default) for gpu in machine.gpus(seen))
    return _joined(f"{limit / default:.0%} of the default" for limit, default in told if limit and default)


def _lanes(seen: Observation) -> str | None:
    told = ((gpu.width, gpu.width_max) for gpu in machine.gpus(seen))
    return _joined("all" if width == most else f"{width} of {most}" for width, most in told if width and most)


def _mapped(kind: str, seen: Observation, mapped: Iterable[Any], one: bool) -> str | None:
    """What all ranks of a node have mapped of a kind, by what the files say of themselves; where they have nothing in
    common, all. Paths, without the node's own name, where nothing tells a version. ``one``: None where each has mapped
    several: which of them is in use is not told."""
    files = machine.fields(machine.reader(seen, "ranks").get("libraries"))
    told = [{lib.path: version_in_file(files.get(lib.path), lib) for lib in each} for each in _of_kind(kind, mapped)]
    known = [{version for version in each.values() if version} for each in told]
    sets = [each for each in known if each] or [{path.replace(seen.node, "%h") for path in each} for each in told]
    shared = set.intersection(*sets) if sets else set[str]()
    return None if one and len(shared) > 1 else _joined(shared or set().union(*sets))


def _of_kind(kind: str, mapped: Iterable[Any]) -> list[list[Library]]:
    each = ([lib for lib in machine.libraries_of({"libraries": paths}) if lib.kind == kind] for paths in mapped)
    return [one for one in each if one]


def _kernel(seen: Observation) -> str | None:
    return seen.kernel or None


def _slurmd(seen: Observation) -> str | None:
    return seen.slurm.get("Version") or services.version_in(seen.text("slurmd-version"))


def _os(seen: Observation) -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]{1,100})', seen.text("os-release"), re.MULTILINE)
    return found.group(1) if found else None


def _installer(seen: Observation) -> str | None:
    return efa.installer_version(seen.text("efa-installed"))


def _firmware(seen: Observation) -> str | None:
    return _joined(text.strip() for text in seen.files("rdma-firmware").values())


def _mtu(seen: Observation) -> str | None:
    found = netdev.interfaces({**seen.files("links"), **seen.present("link-drivers")})
    return _joined(str(one.mtu) for one in found if one.driver and one.ethernet and one.state == "up" and one.mtu)


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({one for one in values if one})) or None


ITEMS: Sequence[Item] = (
    Item("NCCL of the ranks", "P0", library="nccl", fatal=True),
    Item("NVIDIA driver", "P1", _driver, by="type"),
    Item("CUDA of the driver", "P2", _cuda, by="type"),
    Item("CUDA runtime of the ranks", "P1", library="cudart"),
    Item("NCCL's plugin of the ranks", "P1", library="ofi-plugin"),
    Item("libfabric of the ranks", "P1", library="libfabric"),
    Item("EFA installer", "P1", _installer, by="type"),
    Item("EFA driver", "P1", lambda seen: seen.text("efa-module").strip() or None, by="type"),
    Item("kernel", "P2", _kernel),
    Item("operating system", "P2", _os),
    Item("GPU firmware (VBIOS)", "P2", _vbios, by="board"),
    Item("power limit of GPUs", "P1", _power, by="type"),
    Item("PCIe lanes of GPUs", "P1", _lanes, by="type"),
    Item("firmware of RDMA cards", "P2", _firmware, by="type"),
    Item("MTU", "P1", _mtu, by="type"),
    Item("slurmd", "P2", _slurmd),
    Item("container runtime (enroot)", "P2", lambda seen: seen.text("container").strip() or None),
    Item("machine type of one job's nodes", "P1", lambda seen: machine.dmi(seen).get("product_name"), by="job"),
)


def matrix(fleet: Fleet) -> dict[str, dict[str, str]]:
    """Item → node → value, without nodes that do not tell it, and without what ranks have mapped."""
    found: dict[str, dict[str, str]] = {}
    for item in ITEMS:
        for node, seen in sorted(fleet.nodes.items()):
            value = _value(item, seen)
            if value is not None:
                found.setdefault(item.name, {})[node] = value
    return found


def _value(item: Item, seen: Observation) -> str | None:
    try:
        return item.read(seen) if item.read else None
    except NotObserved:
        return None


def _findings(fleet: Fleet) -> Iterator[Finding]:
    told = matrix(fleet)
    if len(fleet.nodes) < 2:
        yield Finding(_ID, "NOT-APPLICABLE", "one node has nothing to be compared with")
        return
    types = {node: machine.dmi(seen).get("product_name", "") for node, seen in fleet.nodes.items()}
    keys = {
        "type": types,
        "board": {node: f"{types[node]} {_boards(seen)}" for node, seen in fleet.nodes.items()},
        "job": {node: machine.jobs(seen) for node, seen in fleet.nodes.items()},
    }
    ranks = _programs(fleet)
    alike: dict[tuple[str, ...], list[str]] = {}
    for item in ITEMS:
        parts = _by_program(item, fleet, ranks) if item.library else [told.get(item.name, {})]
        for values in (_comparable(item, part) for part in parts):
            groups = [values] if item.library else _groups(item, values, keys)
            found = [one for group in groups for one in _odd(item, group)]
            yield from found
            if len(values) > 1 and not found:
                alike.setdefault(tuple(sorted(values)), []).append(_words(item, values))
    if not told:
        raise NotObserved("no node tells any version")
    for nodes, items in alike.items():
        yield Finding(_ID, "PASS", f"alike on these nodes: {', '.join(items)}", nodes=nodes)
    if quiet := sorted(set(fleet.nodes) - set(told.get(_ALWAYS, {}))):
        yield Finding(_ID, "UNKNOWN", f"tells not even its {_ALWAYS}: hardly anything is compared", nodes=quiet)


def _words(item: Item, values: Mapping[str, str]) -> str:
    told = sorted(set(values.values()))
    return f"{item.name} {told[0][:80]}" if len(told) == 1 else item.name


def _programs(fleet: Fleet) -> list[list[Seen]]:
    """Of each job: steps of one may have libraries of their own."""
    by_job: dict[str, list[Seen]] = {}
    for node, seen in sorted(fleet.nodes.items()):
        with suppress(NotObserved):
            rows = machine.ranks(seen)
            jobs = {row["pid"]: str(row.get("job") or "") for row in rows if isinstance(row.get("pid"), int)}
            for one in of_node(node, rows):
                by_job.setdefault(jobs[one.pid], []).append(one)
    return [members for job in sorted(by_job) if job for members in programs(by_job[job])]


def _by_program(item: Item, fleet: Fleet, ranks: Sequence[Sequence[Seen]]) -> Iterator[dict[str, str]]:
    for members in ranks:
        mapped: dict[str, list[Any]] = {}
        for one in members:
            mapped.setdefault(one.node, []).append(one.libraries)
        told = ((node, _mapped(item.library, fleet.nodes[node], each, item.fatal)) for node, each in mapped.items())
        yield {node: value for node, value in told if value is not None}


def _comparable(item: Item, values: Mapping[str, str]) -> Mapping[str, str]:
    """A path beside a version is no other version: one file could be read, the other could not. Paths alone prove no
    difference with which a job can't run."""
    versions = {node: value for node, value in values.items() if not value.startswith("/")}
    return versions if versions or item.fatal else values


def _groups(item: Item, values: Mapping[str, str], keys: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Of nodes without a rank nothing is compared that is a job's own matter."""
    if not item.by:
        yield dict(values)
        return
    key = keys[item.by]
    for one in sorted({key[node] for node in values}):
        if one or item.by != "job":
            yield {node: value for node, value in values.items() if key[node] == one}


def _odd(item: Item, values: Mapping[str, str]) -> Iterator[Finding]:
    """Those who differ from most; where no value has a majority, all."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    common, number = counts.most_common(1)[0]
    most = number > len(values) * table()["odd-share"]
    if not most and common.startswith("/"):
        return  # folders of their own are no difference between the libraries in them
    odd = sorted(node for node, value in values.items() if not most or value != common)
    proofs = [Proof(f"{item.name} on {count} nodes", value[:_SHOWN]) for value, count in counts.most_common(8)]
    told = (
        f"{item.name}: other than on most nodes ({common[:80]})"
        if most
        else f"{item.name}: {len(counts)} values, none on most"
    )
    status: Status = "FAIL" if item.fatal else "WARN"
    values_told = {"item": item.name, "common": common[:80]}
    yield Finding(_ID, status, told, item.priority, odd, proofs=proofs, values=values_told)


@dataclass
class _Versions:
    id: str = _ID
    title: str = "Versions are alike on all nodes"
    area: Area = "fleet"
    sources: Sequence[str] = _SOURCES
    explains: Sequence[str] = ("fleet.bandwidth",)

    def judge(self, observed: Fleet) -> Iterable[Finding]:
        return _findings(observed)


CHECKS = (_Versions(),)
