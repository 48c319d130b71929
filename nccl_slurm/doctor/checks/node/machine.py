"""What several checks ask of a node: its instance type, its GPUs and cards, its ranks, the window that is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from nccl_slurm.doctor.check import NotObserved, Proof
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.doctor.read import pci, ports, smi
from nccl_slurm.doctor.read.libraries import Library, libraries
from nccl_slurm.doctor.table import Instance, table
from nccl_slurm.parse.patterns import Rows, load_rows

__all__ = [
    "GPU_SOURCES",
    "PCI_SOURCES",
    "RDMA_SOURCES",
    "asked",
    "counts_parts",
    "devices",
    "dmi",
    "fields",
    "functions",
    "gpus",
    "gres",
    "gres_has_type",
    "has_gpus",
    "instance",
    "is_aws",
    "is_grace",
    "jobs",
    "libraries_of",
    "on_a_base",
    "pattern_rows",
    "ranks",
    "rdma_on_bus",
    "reader",
    "rows",
    "smi_proof",
    "step",
    "window",
]

PCI_SOURCES = ("pci-ids", "pci-drivers")
#: Of every check that must know whether this machine has GPUs at all.
GPU_SOURCES = ("nvidia-smi", "nvidia-gpus", "nvidia-driver", *PCI_SOURCES, "dmi")
RDMA_SOURCES = ("rdma-ports", "rdma-drivers", "rdma-devices")
_GRES = re.compile(r"(?:^|,)gpu(?::([A-Za-z0-9_.-]{1,60}))?:([0-9]{1,4})(?=[(,]|\Z)")
#: Of a part of a GPU (MIG): ``1g.10gb``, ``a100_3g.20gb``.
_PART = re.compile(r"(?:^|_)[0-9]g\.[0-9]{1,3}gb")
#: Types that sites give to accelerators of AMD and Intel: ``mi300x``, ``gaudi3``.
_OTHERS = re.compile(r"(?:amd|instinct|mi[0-9]{2,3}|intel|gaudi|hl[-_]?[0-9])", re.IGNORECASE)
_SMI = "nvidia-smi -q -x"
#: Boards that are made for a base with NVLink; one of the same chip for a slot is called PCIe or NVL.
_ON_A_BASE = re.compile(r"SXM|\bHBM3\b|\b(?:H20|H200|B[23]00|GB[23]00)\b(?! (?:NVL|PCIe))", re.IGNORECASE)
_GRACE = re.compile(r"\bG[HB][0-9]{3}\b")
#: Words of nvidia-smi that are an answer of its driver, though no table of GPUs.
_SAYS_NO = re.compile(r"\A(?!\s*<)[^\n]{0,200}(?:no devices|not found|fail|unable|error|lost)", re.IGNORECASE)


def instance(seen: Observation) -> Instance | None:
    """By DMI, which any user may read. None: no EC2 instance, or a type that the table does not have."""
    return table().instance(dmi(seen).get("product_name")) if is_aws(seen) else None


def is_aws(seen: Observation) -> bool:
    return "amazon" in dmi(seen).get("sys_vendor", "").lower()


def is_grace(seen: Observation) -> bool:
    """GH200 and GB200: the processor's SMMU stands between by design, and what switches there are stand outside."""
    if _GRACE.search(dmi(seen).get("product_name", "")):
        return True
    try:
        return any(_GRACE.search(gpu.name or "") for gpu in gpus(seen))
    except NotObserved:
        return False


def on_a_base(seen: Observation) -> bool:
    """Whether its GPUs, by their names, stand on a base that joins them by NVLink. False where no name is told."""
    try:
        return all(_ON_A_BASE.search(gpu.name or "") for gpu in gpus(seen))
    except NotObserved:
        return False


def dmi(seen: Observation) -> dict[str, str]:
    try:
        return {path.rsplit("/", 1)[-1]: text.strip() for path, text in seen.present("dmi").items()}
    except NotObserved:
        return {}


def gres(seen: Observation) -> int | None:
    """GPUs that Slurm counts on: ``Gres=gpu:h100:8(S:0-1)``. None: Slurm was not asked, tells none, or counts parts."""
    found = _GRES.findall(seen.slurm.get("Gres", ""))
    if not found or any(_PART.search(name) for name, _ in found):
        return None
    return sum(int(number) for _, number in found)


def gres_has_type(seen: Observation) -> bool:
    return all(name for name, _ in _GRES.findall(seen.slurm.get("Gres", "")))


def counts_parts(seen: Observation) -> bool:
    """Whether Slurm counts parts of GPUs (MIG) on this node."""
    return any(_PART.search(name) for name, _ in _GRES.findall(seen.slurm.get("Gres", "")))


def functions(seen: Observation, *keys: str) -> list[pci.Function]:
    """PCI functions. Raises where the bus can't be read; ``keys``: further sources of the same files."""
    sources: list[Mapping[str, str]] = [seen.files("pci-ids")]
    for key in ("pci-drivers", *keys):
        try:
            sources.append(seen.present(key))
        except NotObserved:
            continue
    return pci.functions(*sources)


def has_gpus(seen: Observation) -> bool | None:
    """NVIDIA's. None: neither the bus, nor the driver, nor Slurm or DMI tell. A driver that is loaded found GPUs once:
    it does not load without one. Slurm's count may be of another maker's (``Gres=gpu:mi300x:8``)."""
    row = instance(seen)
    if (row is not None and row.gpus) or _has_driver(seen):
        return True
    promised = bool(gres(seen))
    try:
        if seen.present("nvidia-gpus", part=True):
            return True
        found = functions(seen)
    except NotObserved:
        return True if promised and not _is_of_others(seen) else None
    if pci.gpus(found):
        return True
    return promised and not _is_of_others(seen) and not pci.others(found)


def _is_of_others(seen: Observation) -> bool:
    """By the types of Slurm's GRES."""
    names = [name for name, _ in _GRES.findall(seen.slurm.get("Gres", ""))]
    return bool(names) and all(_OTHERS.match(name) for name in names)


def _has_driver(seen: Observation) -> bool:
    try:
        return any("NVRM" in text for text in seen.present("nvidia-driver", part=True).values())
    except NotObserved:
        return False


def gpus(seen: Observation) -> Sequence[smi.Gpu]:
    """As nvidia-smi tells them. Raises where it tells none: a node whose driver is dead is not one without faults."""
    found = asked(seen)
    if not found.gpus:
        raise NotObserved(found.why or "nvidia-smi lists no GPU")
    return found.gpus


def asked(seen: Observation) -> smi.Smi:
    output = seen.command("nvidia-smi")
    found = smi.read(output.out)
    if found.gpus is None and output.rc == 0 and not _SAYS_NO.search(output.out):
        raise NotObserved(f"nvidia-smi: its answer can't be read: {found.why}")
    if found.gpus is None and output.rc != 0:
        lines = (output.err.strip() or output.out.strip()).splitlines()
        raise NotObserved(f"nvidia-smi: {lines[0][:200] if lines else f'status {output.rc}'}")
    return found


def smi_proof(line: str) -> Proof:
    return Proof(_SMI, line)


def devices(seen: Observation, *keys: str) -> list[ports.Device]:
    """RDMA devices; empty where the kernel has none. Raises where its folder can't be read."""
    names = seen.present("rdma-devices")
    if names.unread:
        path, why = next(iter(names.unread.items()))
        raise NotObserved(f"{path}: {why}")
    if not any(text.strip() for text in names.values()):
        return []
    files: dict[str, str] = {f"/sys/class/infiniband/{name}/.": "" for text in names.values() for name in text.split()}
    for key in ("rdma-ports", "rdma-drivers", *keys):
        files.update(seen.present(key))
    return ports.devices(files)


def rdma_on_bus(seen: Observation) -> list[pci.Function]:
    """InfiniBand cards by the bus: those that no driver holds are nowhere else. Empty where there is no bus at all.
    Raises where it can't be read."""
    ids = seen.present("pci-ids")
    if ids.unread and not ids:
        path, why = next(iter(ids.unread.items()))
        raise NotObserved(f"{path}: {why}")
    return pci.infiniband(functions(seen, "pci-devices")) if ids else []


def ranks(seen: Observation) -> list[Mapping[str, Any]]:
    """Rows of `gather.ranks`. Empty: no rank is on this node. Raises where others' processes can't be read."""
    told = reader(seen, "ranks")
    if not isinstance(told.get("ranks"), list):
        raise NotObserved("ranks: the node's answer is none")
    if not told["ranks"] and told.get("hidden"):
        raise NotObserved(f"ranks: {str(told['hidden'])[:300]}")
    found = rows(told["ranks"])
    unreadable = told.get("unreadable")
    if not found and unreadable:
        raise NotObserved(f"processes of the job belong to another user: {seen.more_rights}")
    return found


def fields(value: Any) -> Mapping[str, Any]:
    """Of what a node said: empty where it is no object."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def reader(seen: Observation, key: str) -> Mapping[str, Any]:
    """Raises where its answer is no object."""
    value = seen.reader(key)
    if not isinstance(value, dict):
        raise NotObserved(f"{key}: the node's answer is none")
    return value


def jobs(seen: Observation) -> str:
    """Ids of the jobs whose ranks are on this node, joined; empty where there are none, or that was not observed."""
    try:
        found = {str(row["job"]) for row in ranks(seen) if row.get("job")}
    except NotObserved:
        return ""
    return ",".join(sorted(found))


def step(row: Mapping[str, Any]) -> dict[str, str]:
    """For commands in a step beside this rank: its job and that one's owner. Empty where they are not told."""
    job, uid = row.get("job"), row.get("uid")
    return {"job": str(job)[:20], "owner": str(uid)} if job and isinstance(uid, int) else {}


def libraries_of(row: Mapping[str, Any]) -> list[Library]:
    paths = row.get("libraries")
    return libraries(str(path) for path in paths) if isinstance(paths, list) else []


@cache
def pattern_rows() -> Rows:
    """Compiled once: it takes 40 ms, and there are a thousand nodes."""
    return load_rows()


def window(seen: Observation) -> tuple[float, str]:
    """What happened before is no matter of this look. Seconds since 1970 and its name."""
    if seen.since is not None:
        return seen.since, "in the time looked at"
    return seen.boot_time, "since this boot"
